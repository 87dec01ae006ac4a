//! A long backlog: a new handle counts it, and receives. `STEADFAST_BACKLOG` sets the number of messages.
use std::{
    process::Command,
    time::{Duration, Instant},
};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    queue::{Message, Queue, Receive, Settle},
};

use super::run;
use crate::server::{self, Lane, Proxy};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the resident memory of this process, in MiB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib / 1024.0
}

async fn complete(queue: &impl Queue, max: usize) -> usize {
    let taken = queue.receive(Receive::new(max, HOUR)).await.unwrap();
    let all = taken.into_iter().map(|delivery| {
        assert_eq!(delivery.deliveries, 1);
        (delivery.receipt, Settle::Complete)
    });
    let settled = queue.settle(all.collect()).await.unwrap();
    assert!(settled.iter().all(Result::is_ok), "{settled:?}: not all are completed");
    settled.len()
}

#[test]
fn a_handle_holds_no_message_of_a_long_backlog_and_drains_it() {
    const ALONE: &str = "STEADFAST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // In a process of its own: the memory of other tests would be counted, too.
        let name = "nats::backlog::a_handle_holds_no_message_of_a_long_backlog_and_drains_it";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let [told, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        println!("{told}");
        assert!(told.contains("1 passed"), "{told}{errors}");
        return;
    }
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

/// Receives and completes messages one by one with as many handles. Returns their number in a second, and the bytes that
/// all handles have exchanged with the server for each.
async fn rate(server: &server::Nats, handles: usize, messages: usize) -> (f64, u64) {
    let config = NatsConfig::at(server.url()).prefix(format!("of{handles}"));
    let sender = Nats::connect(config.clone()).await.unwrap().queue("jobs").await.unwrap();
    let proxy = Proxy::start(server.port());
    let config = NatsConfig::at(server.url_at(proxy.port())).prefix(format!("of{handles}"));
    for _ in 0..messages / 1_000 {
        sender.send(vec![Message::new(vec![7; 100]); 1_000]).await.unwrap();
    }
    let mut queues = Vec::new();
    for _ in 0..handles {
        queues.push(Nats::connect(config.clone()).await.unwrap().queue("jobs").await.unwrap());
    }
    let bytes = || proxy.bytes(Lane::Requests) + proxy.bytes(Lane::Replies);
    let (began, before) = (Instant::now(), bytes());
    let work = queues.into_iter().map(|queue| {
        tokio::spawn(async move {
            let mut done = 0;
            while complete(&queue, 1).await == 1 {
                done += 1;
            }
            done
        })
    });
    let mut done = 0;
    for work in work.collect::<Vec<_>>() {
        done += work.await.unwrap();
    }
    assert_eq!(done, messages);
    (messages as f64 / began.elapsed().as_secs_f64(), (bytes() - before) / messages as u64)
}

/// Counts what each message costs: rates are those of the machine, on which other tests come and go.
#[test]
fn a_message_of_sixteen_handles_costs_no_more_than_one_of_a_single_handle() {
    run(async {
        let server = server::Nats::start();
        let ((one, of_one), (sixteen, of_sixteen)) = (rate(&server, 1, 3_000).await, rate(&server, 16, 3_000).await);
        println!("messages a second, one by one: {one:.0} with one handle, {sixteen:.0} with sixteen");
        println!("bytes of each on the wire: {of_one} with one handle, {of_sixteen} with sixteen");
        assert!(of_sixteen < of_one * 3, "{of_sixteen} bytes with sixteen handles, {of_one} with one");
    });
}
