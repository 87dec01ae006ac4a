//! A process ends at each of its requests.
use steadfast::{
    queue::{QueueExt, Settle},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use super::*;

/// A process sends two messages, each until it is confirmed, and moves them to another queue. The
/// next process completes what it left. At the end each message is in the target, once.
fn moves_messages(process: &CrashingProcess) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server::Redis::shared();
        let config = config(server.port());
        let hidden = format!("{}:q:{{jobs}}:q:h", config.prefix);
        let redis = Redis::connect(config).await.unwrap();
        let (jobs, target) = (queue(&redis, "jobs"), queue(&redis, "others"));
        let moves = async |jobs: Arc<dyn Queue>| {
            for body in ["a", "b"] {
                while jobs.send_one(Message::new(body).deduplicate(body)).await.is_err() {}
            }
            for _ in 0..50 {
                let Ok(taken) = jobs.receive(Receive::new(1, HOUR)).await else { continue };
                let Some(taken) = taken.into_iter().next() else { break };
                let message = (target.address().unwrap(), Message::new(taken.body));
                if jobs.extend(&taken.receipt, HOUR).await.is_ok() {
                    // An unknown outcome shows when the message comes again, or does not.
                    let _ = jobs.settle(vec![(taken.receipt, Settle::forward([message]))]).await;
                }
            }
        };
        process.run(moves(process.queue(jobs.clone()))).await;
        // The hour is over: within a short time-out a slow process would make other requests.
        for id in server.command(&["ZRANGE", &hidden, "0", "-1"]).lines() {
            server.command(&["ZADD", &hidden, "1", id]);
        }
        moves(jobs.clone()).await;
        assert_eq!(jobs.depth().await.unwrap().total(), 0);
        let mut moved = bodies(&take(&*target, 10, MINUTE).await);
        moved.sort_unstable();
        assert_eq!(moved, ["a", "b"]);
    });
}

// Guarantee: queue 1, 12.
#[test]
fn messages_of_a_process_that_crashes_at_any_request_are_moved_once() {
    let requests = crash_at_every_write(moves_messages);
    assert!(requests >= 9, "{requests}");
}

// Guarantee: queue 1, 12.
#[test]
fn messages_are_moved_once_whichever_request_fails() {
    fail_at_every_write(moves_messages);
}
