//! Simulated CUPTI.
