//! A deadline as a header: from a caller to a front server, and from there to a back server that is too slow.
//!
//! A caller waits for 300 ms. Without the header both servers continue for seconds after it; with the header they
//! stop with the caller. (Without the caller's deadline the back server gets the front's own limit.) The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{HeaderMap, Request, body::Incoming};
use serde_json::json;
use steadfast::{
    Pipeline,
    call::AttemptInfo,
    http::{answer as refusal, deadline},
    time::Clock,
    timeout::Timeout,
};

#[path = "common/mod.rs"]
mod common;
use common::{Answer, Http, answer, end, no_arguments, say, serve};

/// Time-out of the caller.
const PATIENCE: Duration = Duration::from_millis(700);
/// Duration of the back server's work.
const WORK: Duration = Duration::from_millis(3000);
/// Each server's own limit.
const OWN: Duration = Duration::from_secs(10);

/// One request at a server: the remaining time that it received, and the duration of its work.
#[derive(Default)]
struct Seen(Mutex<Vec<(Option<Duration>, Duration)>>);

impl Seen {
    /// Waits for the end of the `nth` request.
    async fn ended(&self, nth: usize) -> common::Result<(Option<Duration>, Duration)> {
        for _ in 0..6_000 {
            if let Some(seen) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(nth) {
                return Ok(*seen);
            }
            Clock::tokio().sleep(Duration::from_millis(10)).await;
        }
        Err("a server saw no end of a request within a minute".into())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(
        "A deadline that travels as a header: from a caller to a front, from there to a back that is too slow.",
    );
    end(show().await)
}

/// Runs `work` within the time that the headers leave, and within the server's own limit.
async fn within<F>(request: &Request<Incoming>, seen: &Seen, work: impl FnMut(AttemptInfo) -> F + Send) -> Answer
where
    F: Future<Output = common::Result<Answer>> + Send,
{
    let clock = Clock::tokio();
    let (start, left) = (clock.now(), deadline::read(request.headers()));
    let pipeline = Pipeline::new().then(Timeout::new(OWN));
    let work = steadfast::call::WithAttempt(work);
    let done = match left {
        Some(left) => pipeline.call_within(AttemptInfo::with_deadline(start + left), work).await,
        None => pipeline.call(work).await,
    };
    seen.0.lock().unwrap_or_else(PoisonError::into_inner).push((left, clock.now() - start));
    // A time-out becomes a 504.
    done.unwrap_or_else(|error| refusal(&error))
}

/// Returns the remaining time of an attempt as headers.
fn headers(attempt: AttemptInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(left) = attempt.remaining(Clock::tokio().now()) {
        deadline::write(&mut headers, left);
    }
    headers
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let (front_saw, back_saw) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    let (http, clock) = (Http::new(), Clock::tokio());
    let back: SocketAddr = serve({
        let seen = back_saw.clone();
        move |request| {
            let seen = seen.clone();
            async move {
                let work = |_| async {
                    Clock::tokio().sleep(WORK).await;
                    Ok(answer(200, "done"))
                };
                within(&request, &seen, work).await
            }
        }
    })
    .await?;
    let front = serve({
        let (seen, http) = (front_saw.clone(), http.clone());
        move |request| {
            let (seen, http) = (seen.clone(), http.clone());
            async move { within(&request, &seen, |attempt| http.get_with(back, "/", headers(attempt))).await }
        }
    })
    .await?;

    say(format!("\na caller waits {PATIENCE:?} for a front, which asks a back that takes {WORK:?}\n"));
    let caller = Pipeline::new().then(Timeout::new(PATIENCE));
    let mut rows = Vec::new();
    for tells in [false, true] {
        let start = clock.now();
        let error = caller
            .call_with(|attempt| {
                let headers = if tells { headers(attempt) } else { HeaderMap::new() };
                http.get_with(front, "/", headers)
            })
            .await;
        let waited = clock.now() - start;
        // Either the caller's own time-out is first, or the front server's 504.
        let gave_up = match &error {
            Err(error) => error.is_timed_out(),
            Ok(answer) => answer.status() == 504,
        };
        // Also of a server that goes on behind the caller's time-out.
        let (front_left, front_worked) = front_saw.ended(rows.len()).await?;
        let (back_left, back_worked) = back_saw.ended(rows.len()).await?;
        let title = if tells { "with the header" } else { "without a header" };
        say(format!("  {title:<17} the caller timed out after {} ms", waited.as_millis()));
        for (who, left, worked) in [("front", front_left, front_worked), ("back", back_left, back_worked)] {
            let left = left.map_or("nothing".to_owned(), |left| format!("{} ms left", left.as_millis()));
            say(format!("    the {who:<6} received {left:<13} worked for {} ms", worked.as_millis()));
        }
        rows.push((gave_up, front_left, front_worked, back_left, back_worked));
    }
    let ms = |time: Duration| time.as_millis() as u64;
    let told = |left: Option<Duration>| left.map_or(0, ms);
    let [(quiet, f0, _, b0, worked_on), (spoke, f1, front_worked, b1, stopped)] = rows[..] else {
        return Err("two rounds".into());
    };
    let summary = json!({
        "patience_ms": ms(PATIENCE), "front_told_ms": told(f1), "back_told_ms": told(b1),
        "back_worked_ms_without": ms(worked_on), "back_worked_ms_with": ms(stopped), "front_worked_ms_with": ms(front_worked),
    });
    let holds = quiet
        && spoke
        && f0.is_none()
        && b0.is_some_and(|left| left > WORK)
        && f1.is_some_and(|left| left <= PATIENCE)
        && b1.zip(f1).is_some_and(|(back, front)| back <= front)
        && worked_on >= WORK
        && stopped < WORK;
    Ok((summary, holds))
}
