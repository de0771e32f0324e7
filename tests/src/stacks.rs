//! Where threads are in the kernel: what a hang leaves to be read.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Of every process of annex and of its workloads: a line for each thread, the innermost call
/// first. annexd's come last: of a long log the end is what is kept.
pub fn of_all() -> String {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let name_of = |pid: &i32| name(&Path::new("/proc").join(pid.to_string()));
    let mut pids: Vec<i32> = pids.filter(|pid| name_of(pid).starts_with("annex")).collect();
    pids.sort_by_key(|pid| name_of(pid) == "annexd");
    pids.into_iter().map(of).collect()
}

/// A line for each thread of a process.
pub fn of(pid: i32) -> String {
    let proc = Path::new("/proc").join(pid.to_string());
    let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
    let field = |key| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
    let mut said = format!("--- {pid} {}, child of {}, {}\n", name(&proc), field("PPid:"), field("State:"));
    for task in fs::read_dir(proc.join("task")).into_iter().flatten().flatten() {
        let stack = fs::read_to_string(task.path().join("stack")).unwrap_or_default();
        let calls = stack.lines().filter_map(|line| line.split_whitespace().nth(1)?.split('+').next());
        let calls = calls.collect::<Vec<_>>().join(" < ");
        // Writing to a string can't fail.
        let _ = writeln!(said, "{} {}: {calls}", task.file_name().to_string_lossy(), name(&task.path()));
    }
    said
}

fn name(proc: &Path) -> String {
    fs::read_to_string(proc.join("comm")).unwrap_or_default().trim().to_owned()
}
