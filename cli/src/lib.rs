//! What `annex bench` measures with: the benchmarks that compare annex with others use it too.

pub mod access;
