//~ expected `std::io::Error`, found `std::fmt::Error`
use steadfast::{Pipeline, Verdict};

fn main() {
    let calls = Pipeline::new().classify(|_: &Result<u8, std::io::Error>| Verdict::success());
    let _ = calls.call(|| async { Ok::<u8, std::fmt::Error>(7) });
}
