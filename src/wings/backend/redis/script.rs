//! Lua scripts that the server runs as one step, and their calls.
use redis::{Cmd, Pipeline, ToRedisArgs, Value};

/// A script, by its hash: the server keeps the text.
pub(super) struct Script {
    kind: Kind,
    /// `true` if a call may change something, so that its outcome is unknown without an answer.
    pub(super) writes: bool,
    /// `true` if calls with the same keys and heads may share one call.
    is_shared: bool,
}

enum Kind {
    Lua {
        hash: String,
        code: String,
    },
    /// No script, but `HMGET`, which is faster than the shortest script.
    Fields,
    /// `TIME` and `HMGET`. A record that had not ended at the time was there then, or since.
    TimeAndFields,
}

/// Functions that each script has. Numbers of 64 bits are texts of 20 digits, because Lua's are
/// doubles.
const PRELUDE: &str = include_str!("lua/prelude.lua");

/// Maximum number of arguments of a shared request, and of their bytes. A larger call shares none:
/// beside the work for its items its own cost is small, and while the server runs it the client can
/// read the answer to another.
const SHARED_ARGUMENTS: usize = 64;
const SHARED_BYTES: usize = 256 << 10;

impl Script {
    /// Creates a script that may change something.
    pub(super) fn writing(code: &str) -> Self {
        Self::new(code, true)
    }

    /// Creates a script that changes nothing.
    pub(super) fn reading(code: &str) -> Self {
        Self::new(code, false)
    }

    /// Reads fields of a hash. The items are the fields.
    pub(super) const fn fields() -> Self {
        Self { kind: Kind::Fields, writes: false, is_shared: true }
    }

    /// Reads the time and fields of a hash.
    pub(super) const fn time_and_fields() -> Self {
        Self { kind: Kind::TimeAndFields, writes: false, is_shared: true }
    }

    /// Lets calls share a request. The script takes [items](Call::items), and answers each.
    pub(super) fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    fn new(code: &str, writes: bool) -> Self {
        let code = format!("{PRELUDE}{code}");
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { kind: Kind::Lua { hash, code }, writes, is_shared: false }
    }

    /// Creates the command that gives the server the text.
    pub(super) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD");
        if let Kind::Lua { code, .. } = &self.kind {
            load.arg(code);
        }
        load
    }
}

/// A call of a script with its keys and arguments.
///
/// The arguments of a shared script are heads, which calls must have in common to share a request,
/// and those of its items in one or two lists. The script receives the heads, the number of all
/// items, all first lists and all second lists.
pub(super) struct Call {
    pub(super) script: &'static Script,
    keys: Vec<String>,
    arguments: Cmd,
    heads: usize,
    firsts: usize,
    items: usize,
    /// Number of arguments that would cost the server as much.
    weight: usize,
}

/// Calls that share a request, each with something beside it.
struct Group<T> {
    weight: usize,
    bytes: usize,
    calls: Vec<(Call, T)>,
}

/// A request in the form that the connection sends.
pub(super) enum Request {
    One(Cmd),
    Both(Pipeline),
}

impl Call {
    /// Creates the call with this key.
    pub(super) fn new(script: &'static Script, key: String) -> Self {
        Self::with_keys(script, vec![key])
    }

    /// Creates the call with these keys. With several it shares no request.
    pub(super) fn with_keys(script: &'static Script, keys: Vec<String>) -> Self {
        Self { script, keys, arguments: Cmd::new(), heads: 0, firsts: 0, items: 0, weight: 0 }
    }

    /// Adds an argument.
    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.arguments.arg(argument);
        self
    }

    /// Ends the heads: the arguments of so many items follow.
    pub(super) fn items(&mut self, items: usize) -> &mut Self {
        self.heads = self.arguments.args_iter().len();
        (self.items, self.firsts) = (items, usize::MAX);
        self
    }

    /// States that the answer may have so many messages.
    pub(super) fn weighing(&mut self, messages: usize) -> &mut Self {
        self.weight = 3 * messages;
        self
    }

    /// Ends the first list of the items' arguments.
    pub(super) fn second_list(&mut self) -> &mut Self {
        self.firsts = self.arguments.args_iter().len() - self.heads;
        self
    }

    /// Returns `true` if the call may share a request.
    pub(super) fn may_share(&self) -> bool {
        let (weight, bytes) = self.size();
        self.script.is_shared && self.keys.len() == 1 && weight <= SHARED_ARGUMENTS && bytes <= SHARED_BYTES
    }

    /// Returns the number of the arguments, and of their bytes.
    fn size(&self) -> (usize, usize) {
        let bytes = self.part(0, usize::MAX).map(<[u8]>::len).sum();
        (self.arguments.args_iter().len().max(self.weight), bytes)
    }

    /// Returns so many arguments behind the first ones.
    fn part(&self, skip: usize, take: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = |argument| match argument {
            redis::Arg::Simple(bytes) => bytes,
            _ => &b""[..],
        };
        self.arguments.args_iter().skip(skip).take(take).map(bytes)
    }

    /// Returns `true` if both may share a request.
    fn goes_with(&self, other: &Self) -> bool {
        std::ptr::eq(self.script, other.script)
            && self.keys == other.keys
            && self.heads == other.heads
            && self.part(0, self.heads).eq(other.part(0, other.heads))
    }

    /// Divides calls, beside anything that belongs to them, into those that share a request.
    pub(super) fn groups<T>(calls: Vec<(Self, T)>) -> Vec<Vec<(Self, T)>> {
        let mut groups: Vec<Group<T>> = Vec::new();
        for (call, beside) in calls {
            let (weight, bytes) = call.size();
            let fits = |group: &Group<T>| {
                group.weight + weight <= SHARED_ARGUMENTS
                    && group.bytes + bytes <= SHARED_BYTES
                    && group.calls[0].0.goes_with(&call)
            };
            match groups.iter_mut().rev().find(|group| fits(group)) {
                Some(group) => {
                    (group.weight, group.bytes) = (group.weight + weight, group.bytes + bytes);
                    group.calls.push((call, beside));
                }
                None => groups.push(Group { weight, bytes, calls: vec![(call, beside)] }),
            }
        }
        groups.into_iter().map(|group| group.calls).collect()
    }

    /// Creates the command of a call of a script that shares no request.
    pub(super) fn into_command(self) -> Cmd {
        match Self::request(&[&self]) {
            Request::One(command) => command,
            Request::Both(_) => Cmd::new(),
        }
    }

    /// Creates the request of these calls, which share it.
    pub(super) fn request(calls: &[&Self]) -> Request {
        let first = calls[0];
        let mut command = match &first.script.kind {
            Kind::Lua { hash, .. } => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(hash).arg(first.keys.len());
                command
            }
            Kind::Fields | Kind::TimeAndFields => redis::cmd("HMGET"),
        };
        for key in &first.keys {
            command.arg(key);
        }
        let add = |command: &mut Cmd, call: &Self, skip, take| {
            for argument in call.part(skip, take) {
                command.arg(argument);
            }
        };
        add(&mut command, first, 0, first.heads);
        if !first.script.is_shared {
            add(&mut command, first, first.heads, usize::MAX);
        } else if matches!(first.script.kind, Kind::Lua { .. }) {
            command.arg(calls.iter().map(|call| call.items).sum::<usize>());
        }
        for call in calls.iter().filter(|call| call.script.is_shared) {
            add(&mut command, call, call.heads, call.firsts);
        }
        for call in calls.iter().filter(|call| call.script.is_shared) {
            add(&mut command, call, call.heads.saturating_add(call.firsts), usize::MAX);
        }
        match first.script.kind {
            Kind::Lua { .. } | Kind::Fields => Request::One(command),
            Kind::TimeAndFields => {
                let mut both = redis::pipe();
                both.cmd("TIME").add_command(command);
                Request::Both(both)
            }
        }
    }

    /// Divides the answer to calls that share a request. `None` is another form than expected.
    pub(super) fn answers(calls: &[&Self], answer: Value) -> Option<Vec<Value>> {
        if let [_] = calls {
            return Some(vec![answer]);
        }
        let all = calls.iter().map(|call| call.items).sum::<usize>();
        let items = calls.iter().map(|call| call.items);
        match (answer, &calls[0].script.kind) {
            (Value::Array(answers), Kind::TimeAndFields) => {
                let mut answers = answers.into_iter();
                let (time, Some(Value::Array(fields))) = (answers.next()?, answers.next()) else { return None };
                let mut fields = (fields.len() == all).then(|| fields.into_iter())?;
                let part =
                    |items| Value::Array(vec![time.clone(), Value::Array(fields.by_ref().take(items).collect())]);
                Some(items.map(part).collect())
            }
            (Value::Array(answers), Kind::Lua { .. } | Kind::Fields) => {
                let mut answers = (answers.len() == all).then(|| answers.into_iter())?;
                Some(items.map(|items| Value::Array(answers.by_ref().take(items).collect())).collect())
            }
            (Value::BulkString(answers), Kind::Lua { .. }) => {
                let mut answers = (answers.len() == all).then_some(&answers[..])?;
                let part = |items| {
                    let (part, rest) = answers.split_at(items);
                    answers = rest;
                    Value::BulkString(part.to_vec())
                };
                Some(items.map(part).collect())
            }
            _ => None,
        }
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

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    static LUA: std::sync::LazyLock<Script> = std::sync::LazyLock::new(|| Script::writing("return 1").shared());
    static READ: Script = Script::time_and_fields();

    fn call(key: &str, head: u8, items: &[(&str, &str)]) -> Call {
        let mut call = Call::new(&LUA, key.to_owned());
        call.arg(head).items(items.len());
        for (first, _) in items {
            call.arg(first);
        }
        call.second_list();
        for (_, second) in items {
            call.arg(second);
        }
        call
    }

    fn words(calls: &[&Call]) -> Vec<String> {
        let Request::One(command) = Call::request(calls) else { panic!("one command") };
        let word = |argument| match argument {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => panic!("a cursor"),
        };
        command.args_iter().map(word).skip(2).collect()
    }

    fn array(numbers: impl IntoIterator<Item = i64>) -> Value {
        Value::Array(numbers.into_iter().map(Value::Int).collect())
    }

    #[test]
    fn calls_with_the_same_key_and_heads_share_a_request_in_order() {
        let one = call("k", 7, &[("a", "1"), ("b", "2")]);
        let two = call("k", 7, &[("c", "3")]);
        assert_eq!(words(&[&one]), ["1", "k", "7", "2", "a", "b", "1", "2"]);
        assert_eq!(words(&[&one, &two]), ["1", "k", "7", "3", "a", "b", "c", "1", "2", "3"]);
        let calls = vec![(one, 0), (call("k", 8, &[]), 1), (two, 2), (call("l", 7, &[]), 3)];
        let groups = Call::groups(calls).into_iter();
        let groups: Vec<Vec<_>> = groups.map(|group| group.into_iter().map(|(_, beside)| beside).collect()).collect();
        assert_eq!(groups, [vec![0, 2], vec![1], vec![3]]);
    }

    #[test]
    fn a_shared_request_ends_before_it_is_long_or_large() {
        let size = |calls: Vec<Call>| {
            let groups = Call::groups(calls.into_iter().map(|call| (call, ())).collect());
            groups.iter().map(Vec::len).collect::<Vec<_>>()
        };
        let large = "x".repeat(SHARED_BYTES / 2 - 10);
        assert_eq!(size((0..3).map(|_| call("k", 7, &[("a", &large)])).collect()), [2, 1]);
        let receive = |messages| {
            let mut call = call("k", 7, &[("a", "1")]);
            call.weighing(messages);
            call
        };
        assert_eq!(size((0..3).map(|_| receive(10)).collect()), [2, 1]);
        assert!(receive(21).may_share() && !receive(22).may_share());
        assert!(!Call::with_keys(&LUA, vec!["k".to_owned(), "l".to_owned()]).may_share());
    }

    #[test]
    fn an_answer_is_divided_by_the_numbers_of_items() {
        let (one, two) = (call("k", 7, &[("a", ""), ("b", "")]), call("k", 7, &[("c", "")]));
        let calls = [&one, &two];
        assert_eq!(Call::answers(&calls, array(1..=3)), Some(vec![array([1, 2]), array([3])]));
        let text = |text: &str| Value::BulkString(text.into());
        assert_eq!(Call::answers(&calls, text("110")), Some(vec![text("11"), text("0")]));
        for wrong in [array(1..=2), array(1..=4), text("11"), Value::Nil] {
            assert_eq!(Call::answers(&calls, wrong), None);
        }
        let read = || {
            let mut call = Call::new(&READ, "k".to_owned());
            call.items(2).arg("h").arg("v");
            call
        };
        let answer = Value::Array(vec![array([9]), array(1..=4)]);
        let part = |first: i64| Value::Array(vec![array([9]), array([first, first + 1])]);
        assert_eq!(Call::answers(&[&read(), &read()], answer), Some(vec![part(1), part(3)]));
    }
}
