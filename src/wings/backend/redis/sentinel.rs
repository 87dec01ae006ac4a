//! Sentinels: they name the server that is the primary.
use std::{future::pending, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{PushKind, RedisError, aio::MultiplexedConnection};
use tokio::sync::Notify;

use super::{
    config::{Address, Place},
    connection::{self, Connector, Driver, OnPush, is_denied, without_login},
    failure::failure,
};
use crate::{
    port::{PortError, PortErrorKind},
    race::{First, race},
    time::Clock,
};

/// Interval of the looks for another primary: after a sentinel told of one, and otherwise, since a
/// sentinel that vanished tells nothing.
const PAUSE: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(15);
/// Number of looks after a sentinel told.
const SOON: u32 = 20;

impl Connector {
    /// Returns the address of the server. Asks all sentinels at once: the first address that more
    /// than half of them name, or the one that most name once all have answered or this time is
    /// over. So a sentinel that is cut off from the others is believed only if no more of them
    /// answer.
    pub(super) async fn locate(&self, clock: &Clock, limit: Duration) -> Result<Address, PortError> {
        let (sentinels, service) = match &self.target.place {
            Place::Server(address) => return Ok(address.clone()),
            Place::Watched { sentinels, service } => (sentinels, service),
        };
        let named = self.named(clock, limit, (sentinels, service)).await?;
        let most = named.iter().map(|(_, number)| *number).max();
        let mut firsts = named.into_iter().filter(|(_, number)| Some(*number) == most);
        match (firsts.next(), firsts.next()) {
            (Some((address, _)), None) => Ok(address),
            _ => {
                let message = "the sentinels name different servers: a fail-over is under way, or one is cut off";
                Err(failure(&self.target, PortErrorKind::Unavailable, message))
            }
        }
    }

    /// Asks the sentinels until more than half of them name one address, all have answered or this
    /// time is over. Returns the addresses, at least one, and how many name each.
    async fn named(
        &self,
        clock: &Clock,
        limit: Duration,
        (sentinels, service): (&[Address], &str),
    ) -> Result<Vec<(Address, usize)>, PortError> {
        let mut named: Vec<(Address, usize)> = Vec::new();
        let mut refusal = None;
        let ask = async {
            let mut asked: FuturesUnordered<_> = sentinels.iter().map(|sentinel| self.ask(sentinel, service)).collect();
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(address) => {
                        let known = named.iter().position(|(known, _)| *known == address).unwrap_or_else(|| {
                            named.push((address, 0));
                            named.len() - 1
                        });
                        named[known].1 += 1;
                        if 2 * named[known].1 > sentinels.len() {
                            return;
                        }
                    }
                    Err(error) => refusal = Some(error),
                }
            }
        };
        race(ask, clock.sleep(limit)).await;
        if !named.is_empty() {
            return Ok(named);
        }
        Err(refusal.unwrap_or_else(|| {
            let limit = humantime::format_duration(limit);
            failure(&self.target, PortErrorKind::TimedOut, format_args!("no sentinel answered within {limit}"))
        }))
    }

    /// Asks a sentinel for the primary of the service.
    async fn ask(&self, sentinel: &Address, service: &str) -> Result<Address, PortError> {
        let (mut connection, driver) = self.connect_to(sentinel, None).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let fail = |kind, message: &str| failure(&self.target, kind, format_args!("the sentinel {sentinel} {message}"));
        let answer = match race(connection::send(&mut connection, &ask), driver).await {
            First::One(answer) => answer.map_err(|error| self.refused(sentinel, &error))?,
            First::Other(()) => return Err(fail(PortErrorKind::Unavailable, "closed the connection")),
        };
        match redis::from_redis_value(answer) {
            Ok(Some((host, port))) => Ok(Address { host, port }),
            Ok(None) => {
                let message = format!("watches no service `{service}`: check `url`");
                Err(fail(PortErrorKind::Invalid, &message))
            }
            Err(_) => Err(fail(PortErrorKind::Corrupt, "answered with another form than expected")),
        }
    }

    /// Waits until more than half of the sentinels name another server than this one. A primary
    /// that an operator has replaced goes on for seconds, and what it accepts then is lost.
    pub(super) async fn moved(&self, clock: &Clock, limit: Duration, from: &Address) {
        let Place::Watched { sentinels, service } = &self.target.place else { return pending().await };
        for sentinel in sentinels.iter().cycle() {
            let told = Arc::new(Notify::new());
            let tells = told.clone();
            let on_push: OnPush = Arc::new(move |push| {
                if push.kind == PushKind::Message {
                    tells.notify_one();
                }
            });
            let hear = async {
                let Ok((mut connection, mut driver)) = self.connect_to(sentinel, Some(on_push)).await else { return };
                // Without the right to subscribe the looks alone remain.
                if let First::One(_) = race(connection.subscribe("+switch-master"), &mut driver).await {
                    driver.await;
                }
            };
            let look = async {
                // It may have been named before the subscription began.
                let mut looks = 2_u32;
                loop {
                    let named = self.named(clock, limit, (sentinels, service)).await.unwrap_or_default();
                    if named.iter().any(|(now, number)| now != from && 2 * number > sentinels.len()) {
                        return;
                    }
                    let pause = if looks > 0 { PAUSE } else { QUIET };
                    looks = looks.saturating_sub(1);
                    if let First::One(()) = race(told.notified(), clock.sleep(pause)).await {
                        // One sentinel tells before the others know.
                        looks = SOON;
                    }
                }
            };
            if let First::One(()) = race(look, hear).await {
                return;
            }
            clock.sleep(PAUSE).await;
        }
    }

    async fn connect_to(
        &self,
        sentinel: &Address,
        on_push: Option<OnPush>,
    ) -> Result<(MultiplexedConnection, Driver), PortError> {
        let stream = self.dial(sentinel).await?;
        let connected = connection::log_in(stream, &self.target.sentinel_user, on_push).await;
        connected.map_err(|error| self.refused(sentinel, &error))
    }

    fn refused(&self, sentinel: &Address, error: &RedisError) -> PortError {
        let text = without_login(error, &self.target.sentinel_user);
        let (kind, advice) = match (is_denied(error), &self.target.sentinel_user.password()) {
            (true, Some(_)) => (PortErrorKind::Denied, "check `sentinel_user` and `sentinel_password`: "),
            (true, None) => (PortErrorKind::Denied, "set `sentinel_password`: "),
            (false, _) => (PortErrorKind::Unavailable, "is it a sentinel? "),
        };
        failure(&self.target, kind, format_args!("the sentinel {sentinel} refuses, {advice}{text}"))
    }
}
