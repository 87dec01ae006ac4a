//! Running a test over many seeds.
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// The variable that names one seed to run alone.
const VARIABLE: &str = "STEADFAST_SEED";

/// Runs the test with each seed in turn. Where one panics it is printed, and the panic goes on; with `STEADFAST_SEED` in the
/// environment that seed alone is run.
///
/// # Panics
/// Where the test does, or where the variable is no number.
pub fn for_each_seed(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    let seeds = match std::env::var(VARIABLE) {
        Ok(seed) => match seed.parse() {
            Ok(seed) => seed..seed + 1,
            Err(error) => panic!("{VARIABLE}={seed}: {error}"),
        },
        Err(_) => seeds,
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            report(seed);
            resume_unwind(panic);
        }
    }
}

/// To the error stream, as a failed test's words are.
fn report(seed: u64) {
    use std::io::Write;
    // Nobody to read it is no reason to hide the panic.
    let _ = writeln!(std::io::stderr(), "seed {seed} failed; {VARIABLE}={seed} runs it alone");
}
