//! What programs do to their memory, page by page: their algorithms run over arrays that write down
//! each use. The same every time.
//!
//! Footprints are 12 to 20 thousand pages (48 to 80 MiB). A program of many GiB with the same share
//! local behaves alike: all that is measured in pages scales with the limit.

mod arrays;
mod compile;
mod dice;
mod graph;
mod heap;
mod sorting;
mod store;
mod tree;

use crate::policy::memory::{Memory, Trace};

pub struct Program {
    pub name: &'static str,
    pub run: fn(&Memory),
}

impl Program {
    pub fn trace(&self) -> Trace {
        let memory = Memory::default();
        (self.run)(&memory);
        memory.trace()
    }
}

/// All programs.
pub const PROGRAMS: &[Program] = &[
    Program { name: "loop", run: arrays::plain_loop },
    Program { name: "uniform random", run: arrays::uniform },
    Program { name: "scan + points", run: arrays::scan_and_points },
    Program { name: "phase change", run: arrays::phase_change },
    Program { name: "PageRank", run: graph::page_rank },
    Program { name: "BFS", run: graph::breadth_first },
    Program { name: "merge sort", run: sorting::merge_sort },
    Program { name: "quick sort", run: sorting::quick_sort },
    Program { name: "matrix multiply", run: arrays::multiply },
    Program { name: "redis, zipf", run: store::redis },
    Program { name: "python dict", run: store::python },
    Program { name: "JVM with its GC", run: heap::generations },
    Program { name: "SQLite queries", run: tree::queries },
    Program { name: "compile", run: compile::build },
];
