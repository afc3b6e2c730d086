//! Shared machinery of the black-box tests.
