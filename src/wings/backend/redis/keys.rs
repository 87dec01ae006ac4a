//! Names of keys and channels.
//!
//! A key is `PREFIX:KIND:{NAME}:PART`. The braces hold the part that a cluster hashes, so that all
//! keys of one partition, queue or lease are on one node.
/// Makes the names of a handle.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
    database: i64,
}

impl Keys {
    pub(super) const fn new(prefix: String, database: i64) -> Self {
        Self { prefix, database }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key that describes the data.
    pub(super) fn meta(&self) -> String {
        format!("{}:meta", self.prefix)
    }

    /// Returns a channel of a queue and one of a topic that nobody uses, as no name is empty.
    pub(super) fn unused_channels(&self) -> [String; 2] {
        [format!("{}q:w", self.queue("")), self.channel("n", "")]
    }

    /// Returns the first part of the names of this partition's keys.
    pub(super) fn partition(&self, partition: &str) -> String {
        self.key("s", partition)
    }

    /// Returns the name of a lease.
    pub(super) fn lease(&self, name: &str) -> String {
        self.key("l", name)
    }

    /// Returns the first part of the names of this queue's keys.
    pub(super) fn queue(&self, name: &str) -> String {
        self.key("q", name)
    }

    /// Returns the name of the channel of this kind: databases share channels.
    pub(super) fn channel(&self, kind: &str, name: &str) -> String {
        format!("{}:{}:{kind}:{name}", self.prefix, self.database)
    }

    fn key(&self, kind: &str, name: &str) -> String {
        let prefix = &self.prefix;
        // A closing brace would end the hashed part early.
        if name.contains(['}', '%']) {
            let name = name.replace('%', "%25").replace('}', "%7D");
            return format!("{prefix}:{kind}:{{{name}}}:");
        }
        format!("{prefix}:{kind}:{{{name}}}:")
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_any_text_are_apart_and_share_the_hashed_part() {
        let keys = Keys::new("steadfast".to_owned(), 0);
        let names = ["a", "a}", "a%7D", "a%257D", "}", "{}", "a}:x", "a:x", "", "}a", "{", "%"];
        let all: HashSet<_> = names.iter().flat_map(|name| [keys.queue(name), keys.partition(name)]).collect();
        assert_eq!(all.len(), names.len() * 2);
        for name in names {
            let key = keys.partition(name);
            let (_, rest) = key.split_once('{').unwrap();
            let (hashed, _) = rest.split_once('}').unwrap();
            assert_eq!(hashed.replace("%7D", "}").replace("%25", "%"), name);
            assert!(key.ends_with(&format!("{{{hashed}}}:")), "{key}");
        }
    }
}
