//! Checks of a server, each time a connection is made.
use std::{collections::HashMap, sync::LazyLock};

use redis::{Cmd, Value, aio::MultiplexedConnection};

use super::{
    config::Target,
    failure::{failed, failure, unexpected},
    keys::Keys,
    script::{Call, Script},
};
use crate::port::{Capabilities, Capability, PortError, PortErrorKind};

/// Form of the stored data. A later release that changes it raises the number. Form 2 counts
/// crashes in the expiries of a message.
const FORM: u64 = 2;

/// The oldest version of Redis: 6.2 has `ZRANGE ... BYLEX` and `GETDEL`; scripts may write after
/// they read the time.
const OLDEST: (u32, u32) = (6, 2);

/// Settings with which each accepted write is on the disk, also while the file is rewritten, and
/// with which a damaged file is not loaded in part.
const DURABLE: [(&str, &str); 3] =
    [("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no"), ("aof-load-truncated", "no")];

/// Properties of a server that passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Text that names the data set.
    pub(super) identity: String,
    /// `true` if each write is on the disk before its answer.
    pub(super) is_durable: bool,
    /// `true` if its files might keep each write, but it does not tell.
    pub(super) hides_settings: bool,
    /// `true` if no replica can take over without the last writes.
    pub(super) is_alone: bool,
}

impl Server {
    /// Returns the capabilities of this server that the other one lacks.
    pub(super) fn lost_in(&self, other: &Self) -> Vec<Capability> {
        let mut lost = Vec::new();
        if self.is_durable && !other.is_durable {
            lost.push(Capability::Durable);
        }
        if self.is_alone && !other.is_alone {
            lost.push(Capability::Linearizable);
        }
        lost
    }

    /// Adds the capabilities of this server to those of a port.
    pub(super) const fn grant(&self, mut can: Capabilities) -> Capabilities {
        if self.is_durable {
            can = can.with(Capability::Durable);
        }
        if self.is_alone {
            can = can.with(Capability::Linearizable);
        }
        can.with(Capability::Shared)
    }
}

/// Reads the server's state, and refuses it if a contract would not hold on it. A data set without
/// a name receives `new_identity`.
///
/// One round trip, and a second one if the data is new or of an older form. Without the right to
/// channels, a handle is refused when it connects first.
pub(super) async fn check(
    (target, keys): (&Target, &Keys),
    connection: &mut MultiplexedConnection,
    (new_identity, is_first): (&str, bool),
) -> Result<Server, PortError> {
    let mut all = redis::pipe();
    all.cmd("INFO");
    for (name, _) in DURABLE {
        all.cmd("CONFIG").arg("GET").arg(name);
    }
    for channel in keys.unused_channels() {
        all.cmd("PUBLISH").arg(channel).arg("");
    }
    all.add_command(META.load()).add_command(meta(keys, ""));
    let [info, one, two, three, queues, topics, _, found] = send(target, connection, &all).await?;
    let info: String = redis::from_redis_value(accepted(target, info)?).map_err(|_| unexpected(target, "INFO"))?;
    let info = Info::parse(&info);
    info.check(target)?;
    let mut found = parse_meta((target, keys), found)?;
    for answer in [queues, topics].into_iter().filter(|_| is_first) {
        accepted(target, answer).map_err(|error| without_channels((target, keys), error))?;
    }
    if found.0 != Some(FORM) || found.1.is_none() {
        let mut all = redis::pipe();
        all.add_command(META.load()).add_command(meta(keys, new_identity));
        let [_, written] = send(target, connection, &all).await?;
        found = parse_meta((target, keys), written)?;
    }
    let identity = found.1.ok_or_else(|| unexpected(target, "HMGET meta"))?;
    let settings = [one, two, three].into_iter().zip(DURABLE);
    let (is_set, is_told) = settings.fold((true, true), |(is_set, is_told), (answer, (_, value))| {
        // Managed servers refuse, or answer with nothing.
        let pairs: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
        let found = pairs.into_values().next();
        (is_set && found.as_deref().is_none_or(|found| found == value), is_told && found.is_some())
    });
    let is_set = is_set && info.is("aof_enabled", "1");
    Ok(Server {
        identity,
        is_durable: is_set && is_told,
        hides_settings: is_set && !is_told,
        // A server that sentinels watch may have replicas again at any time.
        is_alone: info.is("connected_slaves", "0") && !target.is_watched(),
    })
}

/// Checks the right to wait for replicas: without it each write would be refused when it is made.
pub(super) async fn check_wait(target: &Target, connection: &mut MultiplexedConnection) -> Result<(), PortError> {
    let mut wait = redis::pipe();
    wait.cmd("WAIT").arg(0).arg(1);
    let [answer] = send(target, connection, &wait).await?;
    accepted(target, answer).map_err(|error| {
        if error.kind() != PortErrorKind::Denied {
            return error;
        }
        let user = target.user.username().unwrap_or("default");
        let message = format_args!(
            "the user `{user}` may not wait for replicas, as `replicas` demands: `ACL SETUSER {user} +wait`"
        );
        failure(target, PortErrorKind::Denied, message)
    })?;
    Ok(())
}

/// Sends commands together, and returns the answer to each.
async fn send<const COMMANDS: usize>(
    target: &Target,
    connection: &mut MultiplexedConnection,
    commands: &redis::Pipeline,
) -> Result<[Value; COMMANDS], PortError> {
    let answers = connection.send_packed_commands(commands, 0, COMMANDS).await;
    let answers = answers.map_err(|error| failed(target, &error, false).error)?;
    answers.try_into().map_err(|_| unexpected(target, "the checks of the server"))
}

/// Returns a refusal as an error.
fn accepted(target: &Target, answer: Value) -> Result<Value, PortError> {
    match answer {
        Value::ServerError(refusal) => Err(failed(target, &refusal.into(), false).error),
        answer => Ok(answer),
    }
}

/// Explains that a publish was refused. The default of Redis 7 for a new user is no channel.
fn without_channels((target, keys): (&Target, &Keys), error: PortError) -> PortError {
    if error.kind() != PortErrorKind::Denied {
        return error;
    }
    let (user, prefix) = (target.user.username().unwrap_or("default"), keys.prefix());
    let message = format_args!(
        "the user `{user}` may not publish to the channels `{prefix}:*`, which wake receivers: \
         `ACL SETUSER {user} &{prefix}:* +@pubsub`"
    );
    failure(target, PortErrorKind::Denied, message)
}

static META: LazyLock<Script> = LazyLock::new(|| Script::writing(include_str!("lua/meta.lua")));

/// Creates the command that reads the form and the identity of the data set; with an identity it
/// writes them before, if there is none.
fn meta(keys: &Keys, new_identity: &str) -> Cmd {
    let mut call = Call::new(&META, keys.meta());
    call.arg(FORM).arg(new_identity);
    call.into_command()
}

fn parse_meta((target, keys): (&Target, &Keys), answer: Value) -> Result<(Option<u64>, Option<String>), PortError> {
    let found: (Option<u64>, Option<String>) =
        redis::from_redis_value(accepted(target, answer)?).map_err(|_| unexpected(target, "HMGET meta"))?;
    match found.0 {
        Some(form) if form > FORM => {
            let prefix = keys.prefix();
            let message = format_args!(
                "the data at `{prefix}` has form {form}, and this release knows {FORM}: use the newer release"
            );
            Err(failure(target, PortErrorKind::TooNew, message))
        }
        _ => Ok(found),
    }
}

/// The answer to `INFO`.
struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(text: &'a str) -> Self {
        Self(text.lines().filter_map(|line| line.trim_end().split_once(':')).collect())
    }

    fn get(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }

    /// Valkey calls it the mode of the server.
    fn is_mode(&self, mode: &str) -> bool {
        self.is("redis_mode", mode) || self.is("server_mode", mode)
    }

    fn check(&self, target: &Target) -> Result<(), PortError> {
        use PortErrorKind::{Unavailable, Unsupported};
        let refuse = |kind, message: &str| Err(failure(target, kind, message));
        let version = self.get("redis_version");
        let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
        if (parts.next(), parts.next()) < (Some(OLDEST.0), Some(OLDEST.1)) {
            let (major, minor) = OLDEST;
            let message = format!("the server has version `{version}`: at least {major}.{minor} is needed");
            return refuse(Unsupported, &message);
        }
        if self.is("cluster_enabled", "1") || self.is_mode("cluster") {
            return refuse(
                Unsupported,
                "the server is a node of a cluster (`cluster_enabled` is 1), whose keys are on several nodes, and a \
                 handle has one: use one server, or a primary with replicas and sentinels",
            );
        }
        if self.is_mode("sentinel") {
            return refuse(Unsupported, "the server is a sentinel: write `redis+sentinel://HOST/SERVICE` in `url`");
        }
        if self.is("loading", "1") {
            return refuse(Unavailable, "the server is loading its data");
        }
        if self.is("role", "slave") {
            let advice = if target.is_watched() { "a fail-over is under way" } else { "connect to its primary" };
            return refuse(Unavailable, &format!("the server is a read-only replica: {advice}"));
        }
        let policy = self.get("maxmemory_policy");
        if !policy.is_empty() && policy != "noeviction" {
            let message = format!(
                "the server evicts keys (`maxmemory-policy` is `{policy}`), which loses data: set it to `noeviction`"
            );
            return refuse(Unsupported, &message);
        }
        Ok(())
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::{super::RedisConfig, *};

    #[test]
    fn a_server_that_would_break_a_contract_is_refused_by_name() {
        const FINE: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nloading:0\r\n\
                            maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        let target = RedisConfig::at("redis://redis.internal").check().unwrap();
        let refusal = |info: &str| {
            let checked = Info::parse(info).check(&target);
            checked.err().map(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(refusal(FINE), None);
        assert_eq!(refusal(&FINE.replace("7.0.15", "6.2.0")), None);
        let cases = [
            ("7.0.15", "6.0.16", PortErrorKind::Unsupported, "version `6.0.16`: at least 6.2"),
            ("7.0.15", "", PortErrorKind::Unsupported, "at least 6.2"),
            ("cluster_enabled:0", "cluster_enabled:1", PortErrorKind::Unsupported, "node of a cluster"),
            ("standalone", "sentinel", PortErrorKind::Unsupported, "is a sentinel"),
            ("redis_mode:standalone", "server_mode:sentinel", PortErrorKind::Unsupported, "is a sentinel"),
            ("redis_mode:standalone", "server_mode:cluster", PortErrorKind::Unsupported, "node of a cluster"),
            ("loading:0", "loading:1", PortErrorKind::Unavailable, "is loading"),
            ("master", "slave", PortErrorKind::Unavailable, "connect to its primary"),
            ("noeviction", "allkeys-lru", PortErrorKind::Unsupported, "set it to `noeviction`"),
        ];
        for (from, to, kind, message) in cases {
            let (refused, text) = refusal(&FINE.replace(from, to)).unwrap();
            assert_eq!(refused, kind, "{text}");
            assert!(text.contains(message) && text.starts_with("redis: redis.internal:6379: "), "{text}");
        }
    }
}
