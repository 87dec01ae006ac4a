//! Waiting receivers and the notices that wake them.
use steadfast::queue::QueueExt;
use tokio::{task::JoinHandle, time::timeout};

use super::*;

/// Time within which a notice arrives, also on a busy machine: far less than the interval of polls.
const PROMPT: Duration = Duration::from_secs(120);

/// Begins a receive that waits for an hour, and lets it reach its wait.
async fn begin(queue: &Arc<dyn Queue>, max: usize) -> JoinHandle<Vec<Delivery>> {
    let queue = queue.clone();
    let waits = tokio::spawn(async move { queue.receive(Receive::new(max, HOUR).wait(HOUR)).await.unwrap() });
    crate::server::pass(MS(100)).await;
    waits
}

async fn woken(waits: JoinHandle<Vec<Delivery>>) -> Vec<String> {
    bodies(&timeout(PROMPT, waits).await.expect("the receiver is woken").unwrap())
}

/// The mark that a waiting receiver leaves is removed with the first notice: the receiver that takes
/// the message wakes the next, which leaves it again.
// Guarantee: queue 5.
#[test]
fn each_of_several_receivers_of_a_handle_is_woken_by_a_send_of_its_own() {
    block_on(async {
        let redis = connect(server::Redis::shared()).await;
        let jobs = queue(&redis, "jobs");
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(begin(&jobs, 10).await);
        }
        for i in 0..4 {
            send(&*jobs, [Message::new(i.to_string())]).await;
            crate::server::pass(MS(100)).await;
        }
        let mut all = Vec::new();
        for waits in waits {
            all.extend(woken(waits).await);
        }
        all.sort_unstable();
        assert_eq!(all, ["0", "1", "2", "3"]);
    });
}

/// Waits until the only message is in flight.
async fn taken(queue: &dyn Queue) {
    while queue.depth().await.unwrap().in_flight == 0 {
        crate::server::pass(MS(5)).await;
    }
}

/// A receiver that is dropped with a notice, or with the time of the next return, passes it on.
// Guarantee: queue 6.
#[test]
fn a_dropped_receiver_leaves_its_notice_to_the_others() {
    block_on(async {
        let jobs = queue(&connect(server::Redis::shared()).await, "jobs");
        for round in 0..20 {
            let (first, second) = (begin(&jobs, 1).await, begin(&jobs, 1).await);
            send(&*jobs, [Message::new(round.to_string()).delay(MS(round % 3))]).await;
            first.abort();
            timeout(PROMPT, taken(&*jobs)).await.expect("one of the two takes it, or the server still hides it");
            crate::server::pass(MS(100)).await;
            // The first may have taken it before it was dropped: it is hidden then.
            if second.is_finished() {
                assert_eq!(woken(second).await, [round.to_string()]);
            } else {
                second.abort();
            }
            jobs.purge().await.unwrap();
        }
    });
}

// Guarantee: queue 5.
#[test]
fn a_receiver_that_waits_for_a_late_message_is_told_of_an_earlier_one() {
    block_on(async {
        let redis = connect(server::Redis::shared()).await;
        let jobs = queue(&redis, "jobs");
        send(&*jobs, [Message::new("late").delay(HOUR * 2)]).await;
        let waits = begin(&jobs, 10).await;
        send(&*jobs, [Message::new("earlier").delay(HOUR)]).await;
        send(&*jobs, [Message::new("soon").delay(MS(300))]).await;
        assert_eq!(woken(waits).await, ["soon"]);
    });
}

/// One receiver knows of a message that is due soon; another one has waited since before. A message
/// between the two times reaches one of them.
// Guarantee: queue 5.
#[test]
fn receivers_with_different_times_are_all_told() {
    block_on(async {
        let config = config(server::Redis::shared().port());
        let one = queue(&Redis::connect(config.clone()).await.unwrap(), "jobs");
        let two = queue(&Redis::connect(config).await.unwrap(), "jobs");
        let early = begin(&one, 1).await;
        send(&*two, [Message::new("1").delay(MS(400))]).await;
        let late = begin(&two, 1).await;
        send(&*two, [Message::new("2").delay(MS(800))]).await;
        let mut all = [woken(early).await, woken(late).await].concat();
        all.sort_unstable();
        assert_eq!(all, ["1", "2"]);
    });
}

/// The connection of the notices is lost while a receiver waits; the message comes in the meantime.
// Guarantee: queue 5.
#[test]
fn a_lost_notice_costs_no_more_than_the_reconnection() {
    let server = server::Redis::start();
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        for round in 0..3 {
            let waits = begin(&jobs, 10).await;
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            send(&*jobs, [Message::new(round.to_string())]).await;
            let taken = timeout(PROMPT, waits).await.expect("the receiver looks after the gap").unwrap();
            jobs.complete(&taken[0].receipt).await.unwrap();
        }
    });
}

/// A queue whose receivers find messages publishes nothing, and an empty one asks rarely.
#[test]
fn a_busy_queue_publishes_nothing_and_an_idle_one_asks_rarely() {
    let server = server::Redis::start();
    block_on(async {
        let config = config(server.port());
        let mark = format!("{}:q:{{jobs}}:q:w", config.prefix);
        let jobs = queue(&Redis::connect(config).await.unwrap(), "jobs");
        // The rights to channels are tried when a handle connects.
        let connected = calls(&server, "publish");
        let waits = begin(&jobs, 10).await;
        crate::server::wait_until("the receiver waits", || server.command(&["EXISTS", &mark]) == "1");
        send(&*jobs, [Message::new("first")]).await;
        assert_eq!(woken(waits).await, ["first"]);
        assert_eq!(calls(&server, "publish") - connected, 1);
        for _ in 0..100 {
            send(&*jobs, [Message::new("busy"), Message::new("busy")]).await;
            let receive = Receive::new(1, MINUTE).wait(MINUTE);
            let taken = jobs.receive(receive).await.unwrap();
            jobs.complete(&taken[0].receipt).await.unwrap();
        }
        assert_eq!(calls(&server, "publish") - connected, 1);
        jobs.purge().await.unwrap();
        let before = calls(&server, "evalsha");
        let idle = jobs.receive(Receive::new(1, MINUTE).wait(S(3))).await.unwrap();
        assert_eq!((idle.len(), calls(&server, "evalsha") - before), (0, 2), "at the begin and at the end");
    });
}
