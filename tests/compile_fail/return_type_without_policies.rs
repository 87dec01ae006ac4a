//~ missing generics for struct `Pipeline`
//~ // for a field or a return type, use `BoxedPipeline<T, E>` or `Pipeline<impl Policy>`
use std::time::Duration;
use steadfast::{Pipeline, timeout::Timeout};

fn calls() -> Pipeline {
    Pipeline::new().then(Timeout::new(Duration::from_secs(1)))
}

fn main() {
    calls();
}
