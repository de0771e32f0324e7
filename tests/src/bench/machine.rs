//! The machine that a benchmark ran on.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
}

pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown");
    let meminfo = read("/proc/meminfo");
    let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap_or_default();
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: model.trim_start_matches([' ', '\t', ':']).to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        memory: total.trim().trim_end_matches("kB").trim().parse::<u64>().map_or(0, |kib| kib << 10),
    }
}
