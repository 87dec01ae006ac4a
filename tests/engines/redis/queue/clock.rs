//! Steps of the server's wall clock.
use steadfast::queue::QueueExt;

use super::*;

/// Longer than the visibility time-outs of these tests.
const WAIT: Duration = Duration::from_millis(700);

/// Ids grow, receipts stay valid, and none is given twice. What was hidden before the step stays hidden for longer by it,
/// unless its time is set anew.
// Guarantee: queue 1, 2, 3, 14.
#[test]
fn a_step_back_of_the_servers_clock_loses_and_repeats_nothing() {
    let (server, clock) = server::Redis::with_clock(&[]);
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        let first = jobs.send_one(Message::new("a")).await.unwrap();
        let held = take(&*jobs, 1, MS(500)).await.remove(0);
        clock.set(-3600);
        let second = jobs.send_one(Message::new("b")).await.unwrap();
        assert!(second > first, "{second} after {first}");
        server::pass(WAIT).await;
        let taken = take(&*jobs, 10, MINUTE).await;
        assert_eq!((bodies(&taken), taken[0].age), (vec!["b".to_owned()], Duration::ZERO));
        jobs.complete(&taken[0].receipt).await.unwrap();
        jobs.extend(&held.receipt, MS(500)).await.unwrap();
        server::pass(WAIT).await;
        let again = take(&*jobs, 10, MINUTE).await.remove(0);
        assert_eq!((&again.id, again.deliveries, again.expiries), (&first, 2, 1));
        assert_ne!(again.receipt, held.receipt);
        assert!(is_lost(jobs.complete(&held.receipt).await));
        jobs.complete(&again.receipt).await.unwrap();
        assert_eq!(jobs.depth().await.unwrap().total(), 0);
    });
}

/// A step ahead ends time-outs and delays, also those that a receiver waits for.
// Guarantee: queue 2, 5.
#[test]
fn a_step_ahead_of_the_servers_clock_ends_time_outs_and_delays() {
    let (server, clock) = server::Redis::with_clock(&[]);
    block_on(async {
        let jobs = queue(&connect(&server).await, "jobs");
        send(&*jobs, [Message::new("held"), Message::new("late").delay(MINUTE)]).await;
        let held = take(&*jobs, 1, MINUTE).await.remove(0);
        clock.set(3600);
        let taken = take(&*jobs, 10, MINUTE).await;
        assert_eq!((bodies(&taken), taken[0].deliveries), (vec!["held".to_owned(), "late".to_owned()], 2));
        assert!(is_lost(jobs.complete(&held.receipt).await));
        assert!(taken[1].age > S(3500), "{:?}", taken[1].age);
    });
}
