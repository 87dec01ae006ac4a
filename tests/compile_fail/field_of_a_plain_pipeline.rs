//~ expected `BoxedPipeline<u8, ()>`, found `Pipeline<(Identity, Timeout)>`
//~ call `Into::into` on this expression to convert
use std::time::Duration;
use steadfast::{BoxedPipeline, Pipeline, timeout::Timeout};

struct Client {
    calls: BoxedPipeline<u8, ()>,
}

fn main() {
    let _ = Client { calls: Pipeline::new().then(Timeout::new(Duration::from_secs(1))) };
}
