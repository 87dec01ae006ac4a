//~ expected `Error`, found `AppError`
use steadfast::{Pipeline, Verdict};

struct Response;
struct AppError;

fn judge(_: &Result<Response, std::fmt::Error>) -> Verdict {
    Verdict::success()
}

fn main() {
    let _ = Pipeline::new().classify(judge).error_for_value(|_: Response| Err(AppError));
}
