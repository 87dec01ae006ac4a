//! The cost of an idle listener, and the way of a message from one process to the handler in another.
use std::time::{Duration, Instant};

use steadfast::{
    queue::{Message, QueueExt},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{Engine, MS};

/// Interval at which a waiting receiver looks for itself, with the default settings of both engines.
const POLL: Duration = Duration::from_secs(30);
/// Time to mend connections on a busy machine.
const MENDING: Duration = Duration::from_secs(60);
/// A wait that is longer than this is followed by one of twice its length.
const LONG: Duration = Duration::from_secs(3);

/// Returns when a wait has begun that lasts for seconds, with the number of polls so far: the one before it did.
async fn waits_for_long(listener: &QueueListener) -> u64 {
    let (mut polls, mut at) = (listener.state().polls, Instant::now());
    loop {
        sleep(MS(2)).await;
        let now = listener.state().polls;
        if now > polls {
            if at.elapsed() > LONG {
                return now;
            }
            (polls, at) = (now, Instant::now());
        }
    }
}

/// Listens idly with the default settings, receives from another handle, and loses a wake-up.
async fn listen(engine: Engine) {
    let receiving = engine.aside();
    let (here, there) = (receiving.open().await, engine.open().await);
    let (queue, sender) = (here.queue("jobs").await.unwrap(), there.queue("jobs").await.unwrap());
    // It waits in the queue, which wakes it.
    let listener = QueueListener::new(queue, QueueListenerConfig::default()).unwrap();
    let state = listener.clone();
    let (tell, mut handled) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let handler = |work: Work| {
            // The test has ended if nobody hears it.
            let _ = tell.send((work.body.clone(), Instant::now(), listener.state().polls));
            async {}
        };
        listener.run(async { drop(stopped.await) }, handler).await.unwrap();
    });
    let mut arrives = async |body: &str, within: Duration| {
        let sent = Instant::now();
        sender.send_one(Message::new(body.to_owned())).await.unwrap();
        let came = timeout(within, handled.recv()).await;
        let (came, at, polls) = came.unwrap_or_else(|_| panic!("{body:?} was not handled within {within:?}")).unwrap();
        assert_eq!(came, body.as_bytes());
        (at - sent, polls)
    };
    // The listener is at work, and its wake-ups are subscribed.
    arrives("first", MENDING + POLL).await;

    for body in ["to an idle listener", "and another"] {
        for tries in 1.. {
            let polls = waits_for_long(&state).await;
            // The wait lasts for longer than this. When the handler runs, the next one may have begun.
            let (took, polls_then) = arrives(body, POLL / 2).await;
            if polls_then <= polls + 1 {
                break;
            }
            // A busy machine may take as long as a wait, but not each time.
            assert!(took > LONG && tries < 5, "{body:?} was found by another poll, after {took:?}");
        }
    }

    waits_for_long(&state).await;
    let (before, began) = (receiving.proxy.round_trips(), Instant::now());
    sleep(Duration::from_secs(3)).await;
    let (asked, idle) = (receiving.proxy.round_trips() - before, began.elapsed());
    // A poll, and the renewal of connections: not one request a second.
    assert!(asked < idle.as_secs(), "an idle listener asked {asked} times within {idle:?}");

    let mut times = Vec::new();
    for number in 0..20 {
        // Far below the interval of the polls: it is woken.
        times.push(arrives(&format!("message {number}"), POLL / 2).await.0);
    }
    times.sort();

    // The listener waits again: a request that was under way could take the message, and its reply be lost.
    sleep(MS(250)).await;
    receiving.proxy.is_quiet().await;
    receiving.proxy.refuse(true);
    receiving.proxy.cut();
    let mend = async {
        sleep(MS(300)).await;
        receiving.proxy.pass();
    };
    // It is sent while nothing wakes the listener.
    let ((late, _), ()) = tokio::join!(arrives("while it was cut off", MS(300) + MENDING + POLL), mend);
    println!(
        "idle: {asked} round trips in {idle:?}; woken after {:?} (median), {:?} at most; {late:?} after a cut",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    stop.send(()).unwrap();
    running.await.unwrap();
}

#[cfg(feature = "nats")]
#[test]
fn an_idle_listener_on_nats_asks_little_and_is_woken() {
    super::run(listen(Engine::new(crate::server::Nats::start())));
}

#[cfg(feature = "postgres")]
#[test]
fn an_idle_listener_on_postgres_asks_little_and_is_woken() {
    super::run(listen(Engine::new(crate::server::Postgres::start())));
}

#[cfg(feature = "redis")]
#[test]
fn an_idle_listener_on_redis_asks_little_and_is_woken() {
    super::run(listen(Engine::new(crate::server::Redis::durable())));
}
