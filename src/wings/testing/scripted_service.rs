//! A service that follows a script.
use std::{sync::Arc, time::Duration};

use crate::{
    outcome::{FailureKind, Verdict},
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// A service that answers by a script, on a clock, and records its calls.
///
/// A script is a list of steps, separated by commas, one for each call. The last step repeats for
/// all further calls.
///
/// | step | effect on the call |
/// |---|---|
/// | `ok` | answers 200 |
/// | `204`, `503` | answers that status: below 400 an `Ok`, else an `Err` |
/// | `503 retry-after 2s` | answers that status, with that hint |
/// | `reset` | fails with a connection reset |
/// | `hang` | never answers |
/// | `panic` | panics |
/// | ... `in 100ms` | takes effect after that time |
/// | ... `x3` | applies to three calls |
///
/// Clones are the same service.
///
/// ```
/// use steadfast::{testing::ScriptedService, time::Clock};
///
/// let (clock, _time) = Clock::manual();
/// assert!(ScriptedService::new("ok x3, 503 in 100ms, hang, panic", &clock).is_ok());
/// let error = ScriptedService::new("ok, 503 soon", &clock).unwrap_err();
/// assert_eq!(error.to_string(), "step 2, `503 soon`: `soon` is not `in`, `retry-after` or `xN`");
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedService(Arc<Script>);

#[derive(Debug)]
struct Script {
    steps: Vec<Step>,
    clock: Clock,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    calls: Vec<Instant>,
    running: usize,
    most: usize,
    dropped: usize,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    does: Does,
    after: Duration,
    retry_after: Option<Duration>,
    times: usize,
}

#[derive(Debug, Clone, Copy)]
enum Does {
    Answer(u16),
    Reset,
    Hang,
    Panic,
}

/// The error of a scripted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptedError {
    /// A status of 400 or more.
    #[error("status {status}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Hint of the server.
        retry_after: Option<Duration>,
    },
    /// The connection was lost before an answer.
    #[error("connection reset")]
    Reset,
}

/// The error for an invalid script; it names the step and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {number}, `{step}`: {why}")]
pub struct ScriptError {
    number: usize,
    step: String,
    why: String,
}

impl ScriptedService {
    /// Creates a service with this script, on this clock.
    ///
    /// # Errors
    /// If a step is invalid.
    pub fn new(script: &str, clock: &Clock) -> Result<Self, ScriptError> {
        let steps = script.split(',').enumerate().map(|(i, step)| {
            Step::parse(step).map_err(|why| ScriptError { number: i + 1, step: step.trim().to_owned(), why })
        });
        let steps = steps.collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Script { steps, clock: clock.clone(), log: Mutex::default() })))
    }

    /// Starts the next step of the script at once, and returns the future of its result.
    ///
    /// # Errors
    /// If the script says so.
    ///
    /// # Panics
    /// If the script says so.
    ///
    /// # Cancel safety
    /// A dropped call is counted as dropped. Its step is used up.
    pub fn call(&self) -> impl Future<Output = Result<u16, ScriptedError>> + Send + use<> {
        let step = {
            let mut log = self.log();
            log.calls.push(self.0.clock.now());
            log.running += 1;
            log.most = log.most.max(log.running);
            self.0.step(log.calls.len())
        };
        let running = Running { service: self.clone(), ended: false };
        async move {
            let mut running = running; // moved whole: otherwise the block captures a copy of the flag
            if !step.after.is_zero() {
                running.service.0.clock.sleep(step.after).await;
            }
            if matches!(step.does, Does::Hang) {
                std::future::pending::<()>().await;
            }
            running.ended = true;
            match step.does {
                Does::Answer(status) if status < 400 => Ok(status),
                Does::Answer(status) => Err(ScriptedError::Status { status, retry_after: step.retry_after }),
                Does::Panic => panic!("the script says so"),
                Does::Reset | Does::Hang => Err(ScriptedError::Reset),
            }
        }
    }

    /// Judges a result: 429 is `throttled`, 503 `overloaded`, other 5xx `server`, other 4xx
    /// `client`, a reset `other`.
    pub fn classify(result: &Result<u16, ScriptedError>) -> Verdict {
        let (status, retry_after) = match result {
            Ok(_) => return Verdict::success(),
            Err(ScriptedError::Reset) => return Verdict::failure(FailureKind::Other),
            Err(ScriptedError::Status { status, retry_after }) => (*status, *retry_after),
        };
        let verdict = Verdict::failure(match status {
            429 => FailureKind::Throttled,
            503 => FailureKind::Overloaded,
            500.. => FailureKind::Server,
            _ => FailureKind::Client,
        });
        retry_after.map_or(verdict, |wait| verdict.with_retry_after(wait))
    }

    /// Returns the number of calls that were started.
    pub fn calls(&self) -> usize {
        self.log().calls.len()
    }

    /// Returns the start of each call.
    pub fn called_at(&self) -> Vec<Instant> {
        self.log().calls.clone()
    }

    /// Returns the times between the starts of successive calls.
    pub fn gaps(&self) -> Vec<Duration> {
        self.log().calls.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// Returns the number of calls in flight.
    pub fn running(&self) -> usize {
        self.log().running
    }

    /// Returns the maximum number of calls that were in flight at once.
    pub fn most_running(&self) -> usize {
        self.log().most
    }

    /// Returns the number of calls that were dropped before their end.
    pub fn dropped(&self) -> usize {
        self.log().dropped
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock()
    }
}

impl Script {
    /// Returns the step of call number `n`, counted from 1.
    fn step(&self, n: usize) -> Step {
        let mut left = n;
        let found = self.steps.iter().find(|step| {
            let here = left <= step.times;
            left = left.saturating_sub(step.times);
            here
        });
        // A script has at least one step: `parse` refuses an empty one.
        found.or(self.steps.last()).copied().unwrap_or(Step::OK)
    }
}

impl Step {
    const OK: Self = Self { does: Does::Answer(200), after: Duration::ZERO, retry_after: None, times: 1 };

    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let does = match words.next() {
            Some("ok") => Does::Answer(200),
            Some("reset") => Does::Reset,
            Some("hang") => Does::Hang,
            Some("panic") => Does::Panic,
            Some(status) => match status.parse() {
                Ok(status @ 100..=599) => Does::Answer(status),
                _ => return Err(format!("`{status}` is not ok, reset, hang, panic or a status from 100 to 599")),
            },
            None => return Err("is empty".to_owned()),
        };
        let mut step = Self { does, ..Self::OK };
        let duration = |word: Option<&str>| {
            let word = word.ok_or("a duration is missing")?;
            humantime::parse_duration(word).map_err(|e| format!("`{word}` is not a duration: {e}"))
        };
        while let Some(word) = words.next() {
            match word.strip_prefix('x').map(str::parse) {
                Some(Ok(times @ 1..)) => step.times = times,
                _ if word == "in" => step.after = duration(words.next())?,
                _ if word == "retry-after" => step.retry_after = Some(duration(words.next())?),
                _ => return Err(format!("`{word}` is not `in`, `retry-after` or `xN`")),
            }
        }
        Ok(step)
    }
}

/// A call in flight.
struct Running {
    service: ScriptedService,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut log = self.service.log();
        log.running -= 1;
        log.dropped += usize::from(!self.ended);
    }
}
