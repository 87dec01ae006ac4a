//~ `Mine` does not classify results of type `Result<u8, std::fmt::Error>`
//~ a classifier is a closure `|result: &Result<u8, std::fmt::Error>| -> Verdict`
use steadfast::{Classify, Pipeline, Verdict};

struct Mine;

impl Classify<u8, std::io::Error> for Mine {
    fn classify(&self, _: &Result<u8, std::io::Error>) -> Verdict {
        Verdict::success()
    }
}

fn main() {
    let _ = Pipeline::new().classify(Mine).boxed::<u8, std::fmt::Error>();
}
