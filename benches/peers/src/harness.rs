//! Measuring: every round runs each subject once, in rotated order, so that a busy moment of the machine hits all.

use crate::alloc;
use crate::works::{Instance, Role, Subject, Work, Worker};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub round: Duration,
}

/// What one subject took, per operation.
pub struct Figures {
    pub name: &'static str,
    pub role: Role,
    pub median_ns: f64,
    pub min_ns: f64,
    pub instructions: Option<f64>,
    pub allocations: f64,
    pub bytes_per_key: Option<f64>,
}

/// One work with one number of threads.
pub struct Table {
    pub work: &'static Work,
    pub threads: usize,
    pub figures: Vec<Figures>,
}

impl Table {
    pub fn ours(&self) -> Option<&Figures> {
        self.figures.iter().find(|figures| figures.role == Role::Ours)
    }

    pub fn best(&self) -> Option<&Figures> {
        let rivals = self.figures.iter().filter(|figures| figures.role == Role::Rival);
        rivals.min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))
    }

    /// Ours / best rival: below 1, ours is faster.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.ours()?.median_ns / self.best()?.median_ns)
    }
}

/// The runtime whose timer and context every subject uses; nobody turns its driver.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_time().build().expect("a runtime with a timer"))
}

pub fn measure(
    work: &'static Work,
    threads: &[usize],
    effort: Effort,
    instructions: impl Fn(usize, &Instance) -> Option<f64>,
) -> Vec<Table> {
    let _context = runtime().enter();
    let subjects = (work.subjects)();
    let instances: Vec<Instance> = subjects.iter().map(|subject| (subject.build)()).collect();
    let allocations: Vec<f64> = instances.iter().map(allocations).collect();
    let instructions: Vec<Option<f64>> = instances.iter().enumerate().map(|(at, it)| instructions(at, it)).collect();
    let table = |&threads: &usize| {
        let measured: Vec<usize> = (0..subjects.len()).filter(|&at| threads == 1 || !subjects[at].parks).collect();
        let samples = sample(&measured.iter().map(|&at| &instances[at]).collect::<Vec<_>>(), threads, effort);
        let figures = |(at, mut samples): (usize, Vec<f64>)| {
            samples.sort_by(f64::total_cmp);
            let Subject { name, role, .. } = subjects[at];
            Figures {
                name,
                role,
                median_ns: samples[samples.len() / 2],
                min_ns: samples[0],
                instructions: instructions[at],
                allocations: allocations[at],
                bytes_per_key: instances[at].bytes_per_key,
            }
        };
        Table { work, threads, figures: measured.into_iter().zip(samples).map(figures).collect() }
    };
    threads.iter().map(table).collect()
}

/// Allocations per operation, once warm.
fn allocations(instance: &Instance) -> f64 {
    const SLOW: Duration = Duration::from_micros(100);
    let mut worker = (instance.worker)(0);
    worker(1);
    let start = Instant::now();
    worker(1);
    let times = if start.elapsed() > SLOW { 5 } else { 1000 };
    worker(times);
    let ((), allocations, _) = alloc::count(|| worker(times));
    allocations as f64 / times as f64
}

/// Nanoseconds per operation, by subject and round.
fn sample(instances: &[&Instance], threads: usize, effort: Effort) -> Vec<Vec<f64>> {
    let mut runners: Vec<Runner<'_>> = instances.iter().map(|instance| Runner::new(instance, threads)).collect();
    let times: Vec<u64> = runners.iter_mut().map(|runner| calibrate(runner, effort.round)).collect();
    let mut samples = vec![Vec::with_capacity(effort.rounds); instances.len()];
    for round in 0..effort.rounds {
        for turn in 0..instances.len() {
            let at = (round + turn) % instances.len();
            samples[at].push(runners[at].run(times[at]));
        }
    }
    samples
}

/// How many operations fill a round.
fn calibrate(runner: &mut Runner<'_>, round: Duration) -> u64 {
    let goal = round.as_nanos() as f64;
    let mut times = 1;
    loop {
        let ns = runner.run(times);
        if ns * times as f64 > goal / 8.0 {
            return ((goal / ns) as u64).max(1);
        }
        times *= 2;
    }
}

/// Runs one instance, keeping its worker where one thread is enough.
struct Runner<'i> {
    instance: &'i Instance,
    threads: usize,
    alone: Option<Worker>,
}

impl<'i> Runner<'i> {
    fn new(instance: &'i Instance, threads: usize) -> Self {
        let alone = (threads == 1).then(|| (instance.worker)(0));
        Runner { instance, threads, alone }
    }

    /// Nanoseconds per operation of one thread.
    fn run(&mut self, times: u64) -> f64 {
        match &mut self.alone {
            Some(worker) => {
                let start = Instant::now();
                worker(times);
                start.elapsed().as_nanos() as f64 / times as f64
            }
            None => together(self.instance, self.threads, times),
        }
    }
}

/// The mean over threads that start together; who is done first keeps hammering, untimed, until all are.
fn together(instance: &Instance, threads: usize, times: u64) -> f64 {
    let (ready, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let one = |thread: usize| {
        // Two threads that the scheduler puts on one core do not contend: then there is nothing to measure.
        if let Some(&core) = cores.get(thread) {
            core_affinity::set_for_current(core);
        }
        let _context = runtime().enter();
        let mut worker = (instance.worker)(thread);
        let chunk = times.div_ceil(64);
        worker(chunk);
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        worker(times);
        let ns = start.elapsed().as_nanos() as f64 / times as f64;
        done.fetch_add(1, Ordering::SeqCst);
        while done.load(Ordering::SeqCst) < threads {
            worker(chunk);
        }
        ns
    };
    let one = &one;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let sum: f64 = all.into_iter().map(|thread| thread.join().expect("a worker does not panic")).sum();
        sum / threads as f64
    })
}
