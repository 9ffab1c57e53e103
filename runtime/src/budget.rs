//! The window as a contract, in exact integers.
