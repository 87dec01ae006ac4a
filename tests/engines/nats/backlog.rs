//! A long backlog: a new handle counts it, and receives. `STEADFAST_BACKLOG` sets the number of messages.
use std::time::{Duration, Instant};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    queue::{Message, Queue, Receive, Settle},
};

use super::run;
use crate::server;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the resident memory of this process, in MiB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib / 1024.0
}

async fn complete(queue: &impl Queue, max: usize) -> usize {
    let taken = queue.receive(Receive::new(max, MINUTE)).await.unwrap();
    let all = taken.into_iter().map(|delivery| {
        assert_eq!(delivery.deliveries, 1);
        (delivery.receipt, Settle::Complete)
    });
    let settled = queue.settle(all.collect()).await.unwrap();
    assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    settled.len()
}

#[test]
fn a_handle_holds_no_message_of_a_long_backlog_and_drains_it() {
    let messages: usize = std::env::var("STEADFAST_BACKLOG").map_or(20_000, |text| text.parse().unwrap());
    run(async {
        let server = server::Nats::start();
        let config = NatsConfig::at(server.url());
        let sender = Nats::connect(config.clone()).await.unwrap().queue("jobs").await.unwrap();
        let began = Instant::now();
        for _ in 0..messages / 1_000 {
            sender.send(vec![Message::new(vec![7; 100]); 1_000]).await.unwrap();
        }
        println!("{messages} messages of 100 bytes are sent in {:.1?}", began.elapsed());
        for name in ["first", "second"] {
            let before = memory();
            let handle = Nats::connect(config.clone()).await.unwrap().queue("jobs").await.unwrap();
            let began = Instant::now();
            let depth = handle.depth().await.unwrap().total();
            let (took, more) = (began.elapsed(), memory() - before);
            println!("the {name} handle has counted {depth} messages after {took:.1?}: {more:.0} MiB");
            let began = Instant::now();
            let mut done = 0;
            while done < messages / 4 {
                done += complete(&handle, 100).await;
            }
            let more = memory() - before;
            let rate = done as f64 / began.elapsed().as_secs_f64();
            println!("{rate:.0} messages a second are received and completed: {more:.0} MiB");
            assert!(more < 20.0, "{more:.0} MiB more");
        }
        assert_eq!(sender.depth().await.unwrap().total(), messages as u64 / 2);
    });
}
