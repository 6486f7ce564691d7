"""`python -m fedadmm` is the command `fedadmm`."""

from fedadmm.cli import main

if __name__ == "__main__":
    main()
