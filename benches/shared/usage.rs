//! What a process uses, as Linux counts it.

use std::fs;

/// CPU time so far, in seconds.
pub fn cpu_s(pid: u32) -> f64 {
    // Jiffies in a second.
    const JIFFIES: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let jiffies = |place: usize| fields[place].parse::<f64>().unwrap();
    (jiffies(11) + jiffies(12)) / JIFFIES
}

/// A field of /proc/PID/status, in MiB.
pub fn memory_mib(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}
