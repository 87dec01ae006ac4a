//! What viewers cost: shared read-outs, live updates, and the maximum number of viewers.
use std::future::poll_fn;

use futures::future::join_all;
use http::StatusCode;
use http_body::Body;
use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    console::{Console, ConsoleBody, ConsoleConfig},
    queue::InMemoryQueue,
    time::Clock,
};

use super::{HANGS, Moody, S, builder, bury, get, get_request, rights, send, within};
use crate::world::MS;

/// Opens a page's live updates.
pub(super) async fn live(console: &Console, target: &str) -> ConsoleBody {
    let (parts, body) = send(console, get_request("ann", target)).await;
    assert_eq!(parts.status, StatusCode::OK);
    assert_eq!(parts.headers["content-type"], "text/event-stream");
    body
}

/// Returns the next update; `None` at the end of the stream.
pub(super) async fn update(body: &mut ConsoleBody) -> Option<String> {
    let frame = poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

// Guarantee: console 6.
#[tokio::test(start_paused = true)]
async fn viewers_share_read_outs_and_nothing_is_read_while_nobody_looks() {
    let queue = Moody::new();
    let console = builder().queue("q", queue.clone()).build().unwrap();
    let clock = Clock::tokio();
    clock.sleep(S(3600)).await;
    assert_eq!(queue.requests(), 0);

    // 64 open pages cost what one does: depth and peek of the queue each 5 s. Its empty dead letters are not behind this counter.
    let cost = async |viewers: usize, time: u64| {
        let (before, end) = (queue.requests(), clock.now() + S(time));
        join_all((0..viewers).map(async |_| {
            while clock.now() < end {
                let mut body = live(&console, "/?live").await;
                while within(end - clock.now(), update(&mut body)).await.is_some_and(|update| update.is_some()) {}
            }
        }))
        .await;
        queue.requests() - before
    };
    let (alone, many) = (cost(1, 3600).await, cost(64, 360).await);
    assert!((1_400..=1_460).contains(&alone), "{alone}");
    assert!((140..=146).contains(&many), "{many}");

    // A read-out that has begun ends.
    clock.sleep(S(1)).await;
    let before = queue.requests();
    assert_eq!(console.viewers(), 0);
    clock.sleep(S(3600)).await;
    assert_eq!(queue.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn the_next_viewer_beyond_the_maximum_reloads() {
    let console = builder().build().unwrap();
    let mut viewers = Vec::new();
    for _ in 0..64 {
        viewers.push(live(&console, "/?live").await);
    }
    assert_eq!(console.viewers(), 64);
    let (parts, _) = send(&console, get_request("ann", "/?live")).await;
    assert_eq!(parts.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&console, "ann", "/").await.status, StatusCode::OK);
    viewers.pop();
    live(&console, "/?live").await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_on_the_page_within_two_seconds() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let console = builder().watch("payments", &breaker).build().unwrap();
    let mut body = live(&console, "/?live").await;
    let first = update(&mut body).await.unwrap();
    assert!(first.starts_with("data: {") && first.contains("The component reports no trouble"), "{first}");
    breaker.isolate();
    let clock = Clock::tokio();
    let begun = clock.now();
    let next = update(&mut body).await.unwrap();
    assert!(next.contains("payments is isolated"), "{next}");
    assert!((clock.now() - begun) >= S(1) && (clock.now() - begun) <= S(2));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_while_nothing_changes() {
    let console = builder().build().unwrap();
    let mut body = live(&console, "/?live").await;
    let clock = Clock::tokio();
    let begun = clock.now();
    let mut updates = Vec::new();
    while let Some(update) = update(&mut body).await {
        updates.push(update);
    }
    // It ends after five minutes, so that rights are checked again.
    assert_eq!((clock.now() - begun), S(300));
    assert!(updates[0].starts_with("data: "));
    assert_eq!(updates[1..], vec!["event: beat\ndata: 0\n\n"; 19]);
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_reads_nothing_delays_no_other() {
    let queue = Moody::new();
    let console = builder().queue("q", queue.clone()).build().unwrap();
    queue.is(HANGS);
    // Begins the read-out, and is never polled again.
    let mut stalled = live(&console, "/?live").await;
    let polled = poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut stalled).poll_frame(cx).is_ready())).await;
    assert!(!polled);
    let page = within(S(3), get(&console, "ann", "/")).await.unwrap();
    assert!(page.text.contains("no answer within 2s"));
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_reads_nothing_takes_a_place_no_longer_than_another_one() {
    let console = Console::builder(ConsoleConfig::default().max_viewers(1)).authorize(rights).build().unwrap();
    let stalled = live(&console, "/?live").await;
    tokio::time::advance(S(300)).await;
    assert_eq!(send(&console, get_request("ann", "/?live")).await.0.status, StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::advance(S(16)).await;
    assert_eq!(console.viewers(), 0);
    let next = live(&console, "/?live").await;
    drop(stalled);
    assert_eq!(console.viewers(), 1);
    drop(next);
    assert_eq!(console.viewers(), 0);
}

#[tokio::test(start_paused = true)]
async fn parts_are_read_and_kept_in_bounded_numbers() {
    let queue = Moody::new();
    let console = builder().queue("q", queue.clone()).build().unwrap();
    let part = async |n: u32| get(&console, "ann", &format!("/?component=q&of=message%20{n}")).await.text;
    // 64 are kept: of 65 the first is forgotten.
    for n in 0..65 {
        part(n).await;
        tokio::time::advance(MS(1)).await;
    }
    for (n, requests) in [(64, 65), (1, 65), (0, 66)] {
        part(n).await;
        assert_eq!(queue.requests(), requests, "{n}");
    }
    tokio::time::advance(S(60)).await;
    queue.is(HANGS);
    let pages = join_all((100..200).map(part)).await;
    assert_eq!(queue.requests(), 66 + 16);
    assert_eq!(pages.iter().filter(|page| page.contains("too many parts are read at a time")).count(), 84);
    // The whole is read meanwhile, and a component without parts has none.
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let console = builder().watch("payments", &breaker).build().unwrap();
    assert!(get(&console, "olga", "/?component=payments&of=none").await.text.contains("none: gone</h1>"));
    assert_eq!(get(&console, "olga", "/?component=payments&of=none&do=reset").await.status, StatusCode::CONFLICT);
}

#[tokio::test(start_paused = true)]
async fn a_slow_read_out_takes_a_tenth_of_the_time() {
    let queue = Moody::new();
    let console = builder().queue("q", queue.clone()).build().unwrap();
    queue.is(HANGS);
    for (wait, requests) in [(0, 1), (5, 1), (14, 1), (2, 2)] {
        tokio::time::advance(S(wait)).await;
        get(&console, "ann", "/").await;
        assert_eq!(queue.requests(), requests, "{wait}");
    }
}

#[tokio::test(start_paused = true)]
async fn trouble_is_timed_only_while_it_was_seen() {
    let queue = InMemoryQueue::new("q");
    bury(&queue, "one", "no address").await;
    let console = builder().queue("q", queue).build().unwrap();
    let look = async |wait| {
        tokio::time::advance(S(wait)).await;
        get(&console, "ann", "/").await.text
    };
    look(0).await;
    assert!(look(8).await.contains("for at least 8 s"));
    let page = look(8 * 3600).await;
    assert!(page.contains("1 dead letter") && !page.contains("for at least"), "{page}");
    assert!(look(8).await.contains("for at least 8 s"));
}

#[tokio::test(start_paused = true)]
async fn a_read_out_is_refreshed_as_the_settings_say() {
    let queue = Moody::new();
    let config = ConsoleConfig::default().refresh(S(2)).engine_refresh(S(10));
    let console = Console::builder(config).authorize(rights).queue("q", queue.clone()).build().unwrap();
    for expected in [2, 2, 4] {
        get(&console, "ann", "/").await;
        assert_eq!(queue.requests(), expected);
        tokio::time::advance(S(5)).await;
    }
}
