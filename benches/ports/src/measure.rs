//! Measuring: every round runs each subject once, in rotated order, so that a busy moment of the machine hits all.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;

use crate::{Mode, Work, apalis_jobs, by_hand, ours};

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub round: Duration,
}

/// Somebody who can do a work.
pub trait Subject: Send + Sync {
    /// Does whatever must be there before, for so many operations in all: not measured.
    fn prepare(&self, _operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Does so many operations, as this one of several writers.
    fn work(self: Arc<Self>, writer: usize, operations: usize) -> BoxFuture<'static, ()>;
}

/// One line: a work in a mode with so many writers.
pub struct Cell {
    work: Work,
    mode: Mode,
    writers: usize,
    /// By subject, operations a second.
    rates: Vec<(&'static str, f64)>,
}

/// Measures one line.
pub async fn cell(work: Work, mode: Mode, writers: usize, effort: Effort) -> Cell {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let mut subjects: Vec<(&'static str, Arc<dyn Subject>)> =
        vec![("steadfast", ours::subject(work, mode, &at("ours"), false).await)];
    if let Work::Forward(_) = work {
        subjects.push(("two steps", ours::subject(work, mode, &at("two"), true).await));
    }
    if mode != Mode::Memory {
        subjects.push(("rusqlite", by_hand::subject(work, mode, &at("hand"), false)));
        subjects.push(("blocking", by_hand::subject(work, mode, &at("blocking"), true)));
        if let Work::Send(_) | Work::Take(_) = work {
            subjects.push(("apalis", apalis_jobs::subject(work, mode, &at("apalis")).await));
        }
    }
    let mut counts = Vec::new();
    for (_, subject) in &subjects {
        counts.push(calibrate(subject, writers, effort.round).await);
    }
    let mut samples = vec![Vec::new(); subjects.len()];
    for round in 0..effort.rounds {
        for turn in 0..subjects.len() {
            let i = (round + turn) % subjects.len();
            let took = run(&subjects[i].1, writers, counts[i]).await;
            samples[i].push((counts[i] * writers) as f64 / took.as_secs_f64());
        }
    }
    let median = |mut samples: Vec<f64>| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let rates = subjects.iter().zip(samples).map(|((name, _), samples)| (*name, median(samples))).collect();
    Cell { work, mode, writers, rates }
}

/// How many operations of each writer fill a round.
async fn calibrate(subject: &Arc<dyn Subject>, writers: usize, round: Duration) -> usize {
    let mut operations = 1;
    loop {
        let took = run(subject, writers, operations).await;
        if took > round / 4 {
            let full = operations as f64 * round.as_secs_f64() / took.as_secs_f64();
            return (full as usize).clamp(1, 200_000);
        }
        operations *= 2;
    }
}

async fn run(subject: &Arc<dyn Subject>, writers: usize, operations: usize) -> Duration {
    subject.prepare(writers * operations).await;
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers).map(|i| tokio::spawn(subject.clone().work(i, operations))).collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    start.elapsed()
}

impl Cell {
    fn rate(&self, name: &str) -> Option<f64> {
        self.rates.iter().find(|(n, _)| *n == name).map(|(_, rate)| *rate)
    }

    fn ratio(&self, to: &str) -> Option<f64> {
        Some(self.rate("steadfast")? / self.rate(to)?)
    }

    pub fn head() -> String {
        format!(
            "{:<9} {:<8} {:>7} {:>11} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6}   (operations a second; ratio: ours / theirs)",
            "work",
            "mode",
            "writers",
            "steadfast",
            "in place",
            "ratio",
            "blocking",
            "ratio",
            "apalis",
            "ratio",
            "two steps",
            "ratio"
        )
    }

    pub fn line(&self) -> String {
        let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.0}"));
        let ratio = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.2}"));
        format!(
            "{:<9} {:<8} {:>7} {:>11} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6}",
            self.work.name(),
            self.mode.name(),
            self.writers,
            number(self.rate("steadfast")),
            number(self.rate("rusqlite")),
            ratio(self.ratio("rusqlite")),
            number(self.rate("blocking")),
            ratio(self.ratio("blocking")),
            number(self.rate("apalis")),
            ratio(self.ratio("apalis")),
            number(self.rate("two steps")),
            ratio(self.ratio("two steps")),
        )
    }

    pub fn json(&self) -> String {
        let number = |n: Option<f64>| n.map_or("null".into(), |n| format!("{n:.3}"));
        format!(
            "{{\"work\":\"{}\",\"mode\":\"{}\",\"writers\":{},\"ours\":{},\"rusqlite\":{},\"ratio_rusqlite\":{},\"blocking\":{},\"ratio_blocking\":{},\"apalis\":{},\"ratio_apalis\":{},\"two_steps\":{},\"ratio_two_steps\":{}}}",
            self.work.name(),
            self.mode.name(),
            self.writers,
            number(self.rate("steadfast")),
            number(self.rate("rusqlite")),
            number(self.ratio("rusqlite")),
            number(self.rate("blocking")),
            number(self.ratio("blocking")),
            number(self.rate("apalis")),
            number(self.ratio("apalis")),
            number(self.rate("two steps")),
            number(self.ratio("two steps")),
        )
    }
}
