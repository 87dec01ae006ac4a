//! Instructions per operation: the processor's own counter where the kernel hands it out, callgrind where asked.
//!
//! Callgrind starts this program again for one subject of one work (`--only-subject`) and collects nothing but what
//! happens inside [`collected`].

use crate::works::{Instance, Work};
use std::process::Command;

/// Operations counted; enough that entering and leaving the loop does not show.
const TIMES: u64 = 2000;

/// Who counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    Processor,
    Callgrind,
    Nobody,
}

impl Counter {
    /// `asked`: whether a slow count is wanted as well.
    pub fn choose(asked: bool) -> Result<Counter, String> {
        if processor(&mut || ()).is_some() {
            Ok(Counter::Processor)
        } else if !asked {
            Ok(Counter::Nobody)
        } else if Command::new("valgrind").arg("--version").output().is_ok_and(|answer| answer.status.success()) {
            Ok(Counter::Callgrind)
        } else {
            Err("--instructions: no processor counter and no valgrind on this machine".into())
        }
    }

    pub fn count(self, work: &Work, subject: usize, instance: &Instance) -> Option<f64> {
        match self {
            Counter::Processor => {
                let mut worker = (instance.worker)(0);
                worker(TIMES);
                processor(&mut || worker(TIMES)).map(|count| count as f64 / TIMES as f64)
            }
            Counter::Callgrind if work.light => callgrind(work, subject),
            _ => None,
        }
    }
}

#[cfg(target_os = "linux")]
fn processor(work: &mut dyn FnMut()) -> Option<u64> {
    let mut counter = perf_event::Builder::new().build().ok()?;
    counter.enable().ok()?;
    work();
    counter.disable().ok()?;
    counter.read().ok()
}

#[cfg(not(target_os = "linux"))]
fn processor(_: &mut dyn FnMut()) -> Option<u64> {
    None
}

/// Counts the instructions of one subject, or returns `None` without valgrind.
pub fn callgrind(work: &Work, subject: usize) -> Option<f64> {
    let answer = Command::new("valgrind")
        // The plainest copies of memory, which every processor has: the C library would choose others by the processor.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*instructions::collected*"])
        .arg(std::env::current_exe().ok()?)
        .args(["--only-subject", &subject.to_string(), work.name])
        .output()
        .ok()?;
    let report = String::from_utf8(answer.stderr).ok()?;
    let line = report.lines().find_map(|line| line.split_once("Collected :"))?.1;
    Some(line.trim().parse::<f64>().ok()? / TIMES as f64)
}

/// The child's half: builds one subject, warms it up, and runs it where callgrind looks.
pub fn run_one(work: &Work, subject: usize) {
    let _context = crate::harness::runtime().enter();
    let subjects = (work.subjects)();
    let instance = (subjects[subject].build)();
    let mut worker = (instance.worker)(0);
    worker(200);
    collected(&mut worker);
}

#[inline(never)]
fn collected(worker: &mut crate::works::Worker) {
    worker(std::hint::black_box(TIMES));
}
