//! The lag of each partition and its owner, over time: while the run lasts, at its end, and as a table.
use std::{
    fmt::{self, Write as _},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use super::{load::Accepted, worker::Line};

/// Columns of the chart, at most.
const COLUMNS: usize = 60;

pub struct Chart {
    partitions: u16,
    looks: Vec<Look>,
}

struct Look {
    at: Duration,
    arrived: u64,
    accepted: u64,
    p99: Duration,
    finished: u64,
    /// Owner and lag of each partition; none while nobody tells of it.
    parts: Vec<Option<(char, u64)>>,
    owners: Vec<String>,
}

impl Chart {
    pub const fn new(partitions: u16) -> Self {
        Self { partitions, looks: Vec::new() }
    }

    /// Records a moment.
    pub fn look(&mut self, at: Duration, workers: &[(String, Line)], total: &Line, accepted: &Accepted) {
        let mut parts = vec![None; usize::from(self.partitions)];
        for (name, line) in workers {
            for (partition, lag, _) in &line.owned {
                if let Some(part) = parts.get_mut(usize::from(*partition)) {
                    *part = Some((name.chars().next().unwrap_or('?'), *lag));
                }
            }
        }
        self.looks.push(Look {
            at,
            arrived: accepted.arrived.load(Relaxed),
            accepted: accepted.count.load(Relaxed),
            p99: accepted.quantile(0.99),
            finished: total.scheduled + total.rejected,
            parts,
            owners: workers.iter().map(|(name, line)| format!("{name} {}", line.owned.len())).collect(),
        });
    }

    /// Returns the line of the last moment.
    pub fn progress(&self) -> String {
        let Some(last) = self.looks.last() else { return String::new() };
        let before = self.looks.len().checked_sub(2).and_then(|i| self.looks.get(i)).map_or(0, |look| look.accepted);
        let lag: u64 = last.parts.iter().flatten().map(|(_, lag)| lag).sum();
        let free = last.parts.iter().filter(|part| part.is_none()).count();
        format!(
            "{:>4} s  arrived {:>8}  accepted {:>8} (+{:<6}) p99 {:>6.1} ms  ended {:>7}  lag {:>8}  owners {}{}\n",
            last.at.as_secs(),
            last.arrived,
            last.accepted,
            last.accepted - before.min(last.accepted),
            last.p99.as_secs_f64() * 1000.0,
            last.finished,
            lag,
            last.owners.join(", "),
            if free > 0 { format!(", free {free}") } else { String::new() },
        )
    }

    /// Returns a table of all moments: second, partition, owner, lag.
    pub fn table(&self) -> String {
        let mut table = "second,partition,owner,lag\n".to_owned();
        for look in &self.looks {
            for (partition, part) in look.parts.iter().enumerate() {
                let (owner, lag) = part.map_or((String::new(), String::new()), |(o, l)| (o.to_string(), l.to_string()));
                let _ = writeln!(table, "{},{partition},{owner},{lag}", look.at.as_secs());
            }
        }
        table
    }
}

impl fmt::Display for Chart {
    /// Draws a row for each partition: its owner over time, and the last lag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.looks.len().div_ceil(COLUMNS).max(1);
        let most = self.looks.iter().flat_map(|look| look.parts.iter().flatten()).map(|(_, lag)| *lag).max();
        writeln!(f, "owners of the partitions, a column for {step} s: `.` without an owner; then the lag at the end")?;
        for partition in 0..usize::from(self.partitions) {
            let owner = |look: &Look| look.parts[partition].map_or('.', |(owner, _)| owner);
            let row: String = self.looks.iter().step_by(step).map(owner).collect();
            let lag = self.looks.iter().rev().find_map(|look| look.parts[partition]).map_or(0, |(_, lag)| lag);
            let bar = "#".repeat((lag * 30 / most.unwrap_or(1).max(1)) as usize);
            writeln!(f, "{partition:>4} {row} {lag:>8} {bar}")?;
        }
        Ok(())
    }
}
