//! A test over many seeds.
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use crate::testing::report;

/// Environment variable with the one seed to run.
const VARIABLE: &str = "STEADFAST_SEED";

/// Runs the test with each seed in turn. If the test panics, the seed is printed and the panic
/// resumed. With `STEADFAST_SEED` in the environment, only that seed is run.
///
/// # Panics
/// If the test panics, or if the variable is not a number.
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
            report(format_args!("seed {seed} failed; {VARIABLE}={seed} runs it alone"));
            resume_unwind(panic);
        }
    }
}
