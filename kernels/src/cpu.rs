//! The CPU implementation of the op contract.
