//! Simulated CUDA driver.
