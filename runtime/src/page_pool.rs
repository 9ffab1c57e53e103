//! Reference-counted K/V pages.
