//! The library that lives in the profiled process.
