//~ the trait bound `Disposition<Infallible>: From<Disposition>` is not satisfied
use steadfast::{
    queue::{Address, Message},
    stream::{Delivered, StreamProcessor},
    work::Disposition,
};

async fn run(processor: StreamProcessor, invoices: Address) {
    // An event and the messages of a queue end in no common step.
    let handler = async |event: Delivered| {
        Disposition::forward([(invoices.clone(), Message::new(event.event.body.clone()))])
    };
    let _ = processor.run(std::future::pending(), handler).await;
}

fn main() {
    let _ = run;
}
