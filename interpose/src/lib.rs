//! Notice a library as it is loaded, and replace functions in it.
