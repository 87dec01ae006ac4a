//~ `Result<i32, std::io::Error>` is not a future
//~ blocks: `on_retry_blocking`
use steadfast::{Pipeline, call::on_retry};

fn main() {
    let read = || Ok::<i32, std::io::Error>(9);
    let _ = Pipeline::new().call_blocking(on_retry(read, |retrying| eprintln!("{retrying}")));
}
