//! Lua scripts that the server runs as one step.
use redis::Cmd;

/// A script, by its hash: the server keeps the text.
pub(super) struct Script {
    script: redis::Script,
    code: String,
    /// `true` if a call may change something, so that its outcome is unknown without an answer.
    pub(super) writes: bool,
}

/// Functions that each script has: numbers of 64 bits are texts of 20 digits, because Lua's are
/// doubles.
const PRELUDE: &str = include_str!("lua/prelude.lua");

impl Script {
    /// Creates a script that may change something.
    pub(super) fn writing(code: &str) -> Self {
        Self::new(code, true)
    }

    /// Creates a script that changes nothing.
    pub(super) fn reading(code: &str) -> Self {
        Self::new(code, false)
    }

    fn new(code: &str, writes: bool) -> Self {
        let code = format!("{PRELUDE}{code}");
        Self { script: redis::Script::new(&code), code, writes }
    }

    /// Creates the call with these keys. The caller adds the arguments.
    pub(super) fn command<K: AsRef<[u8]>>(&self, keys: &[K]) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(self.script.get_hash()).arg(keys.len());
        for key in keys {
            call.arg(key.as_ref());
        }
        call
    }

    /// Creates the command that gives the server the text.
    pub(super) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.code);
        load
    }
}

/// Returns a number of 64 bits as scripts have it: texts of 20 digits are in the order of the
/// numbers.
pub(super) fn digits(number: u64) -> String {
    format!("{number:020}")
}

/// Returns a duration in microseconds, rounded up, as scripts have it. The longest ends in the year
/// 2255: later times are no exact doubles.
pub(super) fn micros(duration: std::time::Duration) -> u64 {
    const LONGEST: u128 = 7_000_000_000_000_000;
    let micros = duration.as_nanos().div_ceil(1000).min(LONGEST);
    u64::try_from(micros).unwrap_or(u64::MAX)
}
