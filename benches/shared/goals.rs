//! What was measured, beside what it is to be at most.

/// A table that is printed at the end, whatever else was printed meanwhile.
#[derive(Default)]
pub struct GoalTable(Vec<String>);

impl GoalTable {
    /// A line: the name of what was measured, the value and the highest one that is good enough, in one unit.
    pub fn add(&mut self, name: &str, measured: f64, at_most: f64, unit: &str) {
        let met = if measured <= at_most { "met" } else { "MISSED" };
        let line = format!("{name:<66}{measured:>10.2}{at_most:>10.2} {unit:<14}{met}");
        self.0.push(line);
    }

    pub fn print(&self) {
        println!("\n{:<66}{:>10}{:>10}", "", "measured", "at most");
        for line in &self.0 {
            println!("{line}");
        }
    }
}

/// The value that so many percent of these, in ascending order, do not exceed.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
