"""The old address of `fedadmm.study`, for what has not moved yet."""
