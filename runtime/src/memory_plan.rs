//! Every byte that will be allocated, before it is.
