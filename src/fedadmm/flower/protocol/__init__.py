"""What server and sites say to each other, as pure functions: no disk, no network, no clock."""
