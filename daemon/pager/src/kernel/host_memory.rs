//! What the kernel says of the host's memory: `/proc/meminfo` and `/proc/pressure/memory`.

use std::fs;

/// `MemAvailable`, in bytes. Where the kernel does not tell, more than anybody has.
pub fn available() -> u64 {
    meminfo("MemAvailable:")
}

/// `MemTotal`, in bytes.
pub fn total() -> u64 {
    meminfo("MemTotal:")
}

fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&text, name).unwrap_or(u64::MAX >> 10) << 10
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// Percent of the last ten seconds in which some program waited for memory; `None` where the kernel
/// does not tell.
pub fn stall() -> Option<f32> {
    some_avg10(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn some_avg10(text: &str) -> Option<f32> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_whitespace().find_map(|f| f.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_the_kernel_writes_them() {
        let meminfo = "MemTotal:       16318732 kB\nMemAvailable:    9318732 kB\n";
        assert_eq!((field(meminfo, "MemAvailable:"), field(meminfo, "MemFree:")), (Some(9_318_732), None));
        let pressure = "some avg10=1.50 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.25 avg60=0.00 total=3\n";
        assert_eq!((some_avg10(pressure), some_avg10("")), (Some(1.5), None));
        assert!(available() <= total());
    }
}
