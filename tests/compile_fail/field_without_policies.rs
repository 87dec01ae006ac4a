//~ missing generics for struct `Pipeline`
//~ // for a field or a return type, use `BoxedPipeline<T, E>` or `Pipeline<impl Policy>`
use std::time::Duration;
use steadfast::{Pipeline, timeout::Timeout};

struct Client {
    calls: Pipeline,
}

fn main() {
    let _ = Client { calls: Pipeline::new().then(Timeout::new(Duration::from_secs(1))) };
}
