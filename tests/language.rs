//! The language of the documentation, as far as it can be counted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[path = "sources/boards.rs"]
mod boards;
#[path = "sources/links.rs"]
mod links;
mod sources;

use std::{fs, path::Path};

use sources::texts;

/// Words that begin a relative clause. A doc comment begins with a verb or a noun instead.
const RELATIVE: [&str; 14] = [
    "What",
    "Who",
    "Whose",
    "Whoever",
    "Where",
    "Whether",
    "How",
    "Which",
    "That which",
    "For how",
    "By what",
    "Of what",
    "Since when",
    "Until when",
];

/// Widest line of documentation, in characters. Rows of tables cannot be broken and are exempt.
const COLUMNS: usize = 100;

fn is_relative(opening: &str) -> bool {
    let as_many = ["As many", "As much", "As long", "As often"];
    RELATIVE.iter().chain(&as_many).any(|words| {
        opening.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    })
}

/// The first line of each block of `///`.
fn openings(text: &str) -> Vec<&str> {
    let mut before = false;
    let mut openings = Vec::new();
    for line in text.lines() {
        let doc = line.trim_start().strip_prefix("///").filter(|rest| !rest.starts_with('/')).map(str::trim);
        openings.extend(doc.filter(|line| !before && !line.is_empty()));
        before = doc.is_some();
    }
    openings
}

#[test]
fn at_most_two_in_a_hundred_doc_comments_open_with_a_relative_clause() {
    let texts = texts();
    let (mut all, mut relative) = (0, Vec::new());
    for (path, text) in &texts {
        let openings = openings(text);
        all += openings.len();
        relative.extend(openings.into_iter().filter(|line| is_relative(line)).map(|line| format!("{path}: {line}")));
    }
    assert!(relative.len() * 50 <= all, "{} of {all}:\n{}", relative.len(), relative.join("\n"));
}

#[test]
fn no_line_of_documentation_is_wider_than_a_hundred_columns() {
    let mut wide = Vec::new();
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            let doc = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"));
            if doc.is_some_and(|doc| !doc.trim_start().starts_with('|')) && line.chars().count() > COLUMNS {
                wide.push(format!("{path}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// The words of the page of words, as a reader looks them up: letters alone.
fn words(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let word = |row: &str| row.split('|').nth(1).unwrap_or_default().to_lowercase();
    rows.map(|row| word(row).chars().filter(|next| next.is_alphanumeric()).collect()).collect()
}

#[test]
fn the_page_of_words_is_in_alphabetical_order() {
    let words = words(include_str!("../src/_docs/words.md"));
    assert!(words.len() > 100);
    let unordered: Vec<_> = words.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
    assert!(unordered.is_empty(), "{unordered:#?}");
}

/// The paths of the pages below `folder`.
fn pages(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let parts = path.strip_prefix(root).unwrap().iter().map(|part| part.to_str().unwrap());
            found.push(parts.collect::<Vec<_>>().join("/"));
        }
    }
}

#[test]
fn the_readme_and_the_documentation_lead_to_each_page() {
    let (readme, tree) = (include_str!("../README.md"), include_str!("../src/_docs/mod.rs"));
    let mut found = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/_docs"), &mut found);
    assert!(found.len() > 15);
    found.retain(|page| {
        let page = page.trim_start_matches("src/_docs/");
        let included = format!("include_str!(\"{page}\")");
        let address = page.trim_end_matches(".md").trim_end_matches("/index");
        page != "links.md" && !(readme.contains(&format!("/_docs/{address}/index.html\n")) && tree.contains(&included))
    });
    assert!(found.is_empty(), "{found:#?}");
}

/// Stored forms: the file of the source, the line there, and the number on the page of stability.
const FORMS: [(&str, &str, &str); 19] = [
    ("wings/backend/postgres/schema.rs", "const VERSION: i32 = {};", "schema in PostgreSQL | `version` {} |"),
    ("wings/backend/redis/check.rs", "const FORM: u64 = {};", "data in Redis | form {} |"),
    ("wings/backend/nats/setup.rs", "const FORM: u32 = {};", "streams of NATS | form {} |"),
    ("wings/backend/nats/setup.rs", "const WORK_FORM: u32 = {};", "messages of a queue on NATS | form {} |"),
    ("wings/backend/nats/queue/record.rs", "const FORM: u32 = {};", "claims of a queue on NATS | form {} |"),
    ("patterns/saga/stored.rs", "const FORM: &str = \"saga {}\";", "record of a saga | `saga {}` |"),
    ("patterns/index_table/stored.rs", "const FORM: u64 = {};", "entries of an index | {} |"),
    ("roof/event_sourcing/stored.rs", "const FORMAT: u64 = {};", "rows of a log of commits | {} |"),
    ("roof/materialized_view/stored.rs", "const FORMAT: u64 = {};", "rows of a view | {} |"),
    ("roof/stream/stored.rs", "const FORMAT: u64 = {};", "rows of a topic | {} |"),
    ("roof/stream/processor/checkpoint.rs", "const FORM: &str = \"checkpoint {}\";", "`checkpoint {}` |"),
    ("roof/stream/processor/members.rs", "const FORM: &str = \"member {}\";", "`member {}` |"),
    (
        "patterns/cache_aside/remote/record.rs",
        "const FORM: &[u8] = b\"cache {}\\n\";",
        "record of a cache | `cache {}` |",
    ),
    ("patterns/cache_aside/remote/backplane.rs", "strip_prefix(\"cache {} \")", "notice of a cache | `cache {}` |"),
    ("ports/lease/record.rs", "const FORM: &str = \"lease {}\";", "`lease {}` |"),
    ("patterns/throttling/shared/row.rs", "const FORM: &str = \"rate {}\";", "`rate {}` |"),
    ("patterns/circuit_breaker/shared/report.rs", "strip_prefix(\"{} open \")", "`circuit {}` |"),
    ("patterns/static_content/manifest.rs", "const FORM: u64 = {};", "releases of a site, and their head | {} |"),
    ("patterns/sharding/stored.rs", "const FIRST: &str = \"steadfast-shards {}\";", "`steadfast-shards {}` |"),
];

/// The rows of the table with this head, each with its cells.
fn rows<'a>(page: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let lines = page.lines().skip_while(|line| !line.starts_with(head)).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The capabilities that a store on NATS has from release 2.12 of the server on.
const OF_NEWER_NATS: [&str; 3] = ["atomic batch", "ordered append", "time to live"];

#[test]
fn the_page_of_choice_lets_a_pattern_run_where_the_store_has_what_it_needs() {
    let page = include_str!("../src/_docs/choosing.md");
    let (can, components) = (rows(page, "| capability |"), rows(page, "| component |"));
    assert!(components.len() > 8);
    for row in &components[2..] {
        let [component, needs, place] = row[..] else { panic!("{row:?}") };
        let lacks = |engine: &usize| {
            let has = |need: &str| can.iter().any(|row| row[0] == need && row[*engine].contains("store"));
            needs.split(", ").any(|need| need != "none" && !has(need))
        };
        let lacking: Vec<_> = (1..can[0].len()).filter(lacks).map(|engine| can[0][engine]).collect();
        let mut expected =
            if lacking.is_empty() { "all".to_owned() } else { format!("all but {}", lacking.join(" and ")) };
        if needs.split(", ").any(|need| OF_NEWER_NATS.contains(&need)) {
            expected.push_str("; NATS from 2.12");
        }
        assert_eq!(place, expected, "{component}");
    }
}

/// The patterns, by the folders of their pages.
const PATTERNS: [&str; 30] = [
    "patterns/cache_aside",
    "patterns/chaos",
    "patterns/circuit_breaker",
    "patterns/claim_check",
    "patterns/coalesce",
    "patterns/config_store",
    "patterns/fallback",
    "patterns/federated_identity",
    "patterns/gatekeeper",
    "patterns/health",
    "patterns/hedge",
    "patterns/index_table",
    "patterns/leader_election",
    "patterns/queue_listener",
    "patterns/retry",
    "patterns/saga",
    "patterns/sharding",
    "patterns/static_content",
    "patterns/supervisor",
    "patterns/throttling",
    "patterns/timeout",
    "patterns/valet_key",
    "roof/event_sourcing",
    "roof/journal",
    "roof/materialized_view",
    "roof/pipes_and_filters",
    "roof/reconfiguration",
    "roof/scheduler",
    "roof/standard",
    "roof/stream",
];

#[test]
fn the_page_of_each_pattern_begins_with_a_service_and_has_the_five_commonest_uses() {
    let texts = texts();
    let mut found = Vec::new();
    for room in PATTERNS {
        let file = format!("{room}/mod.rs");
        let (_, text) = texts.iter().find(|(path, _)| *path == file).unwrap();
        let first = text.split("//! ```\n").nth(1).unwrap();
        if first.contains("Clock::manual") {
            found.push(format!("{room}: the first example is a test on a manual clock"));
        }
        let uses = text.split("//! # The five commonest uses\n").nth(1).unwrap_or_default();
        let numbered = (1..=5).filter(|number| uses.contains(&format!("//! // {number}. "))).count();
        if numbered != 5 {
            found.push(format!("{room}: {numbered} of the five commonest uses"));
        }
        if text.contains("//! # Considerations\n") {
            found.push(format!("{room}: considerations belong to docs/considerations.md"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_readme_has_a_screen_and_a_half() {
    let readme = include_str!("../README.md");
    let shown = readme.lines().filter(|line| !(line.starts_with('[') && line.contains("]: "))).count();
    assert!(shown <= 115, "README has {shown} lines beside the addresses of its links");
}

#[test]
fn the_readme_the_documentation_and_the_package_open_with_one_sentence() {
    let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
    let sentence = manifest["package"]["description"].as_str().unwrap();
    let opens = |page: &str| {
        let text =
            page.lines().map(|line| line.trim_start_matches("//!").trim()).skip_while(|line| line.starts_with('#'));
        let text = text.collect::<Vec<_>>().join(" ").replace('*', "");
        text.trim_start().starts_with(sentence)
    };
    assert!(opens(include_str!("../README.md")), "README opens with another sentence than Cargo.toml: {sentence}");
    assert!(opens(include_str!("../src/lib.rs")), "lib.rs opens with another sentence than Cargo.toml: {sentence}");
}

#[test]
fn the_readme_states_the_counts_that_its_pictures_show() {
    let readme = include_str!("../README.md");
    let counts = |svg: &str| {
        let (line, _) = svg.split_once(" lost, in ").unwrap();
        let line = line.rsplit('>').next().unwrap().replace(',', "");
        let numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        numbers.collect::<Vec<_>>()
    };
    let unprotected = counts(include_str!("../docs/storm-unprotected.svg"));
    let protected = counts(include_str!("../docs/storm-protected.svg"));
    let [scheduled, rejected, lost] = unprotected[..] else { panic!("{unprotected:?}") };
    let grouped = |n: u64| if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) };
    let stated = format!("{} of {} deliveries lost", grouped(lost), grouped(scheduled + rejected + lost));
    assert!(readme.contains(&stated), "README does not state {stated}");
    // Its picture has the bars of both.
    assert!(
        include_str!("../docs/storm-summary.svg").contains(&stated),
        "the picture of README does not state {stated}"
    );
    assert!(protected[2] == 0 && protected.iter().sum::<u64>() == scheduled + rejected + lost, "{protected:?}");
}

#[test]
fn the_page_of_stability_has_the_number_of_each_stored_form() {
    let (page, texts) = (include_str!("../src/_docs/stability.md"), texts());
    let source = |file: &str| &texts.iter().find(|(path, _)| path == file).unwrap().1;
    for (file, line, row) in FORMS {
        let (before, after) = line.split_once("{}").unwrap();
        let numbers = source(file).split(before).skip(1).filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty() && rest[digits.len()..].starts_with(after)).then_some(digits)
        });
        let number = numbers.last().unwrap_or_else(|| panic!("{file} has no {line}"));
        let row = row.replace("{}", &number);
        assert!(page.contains(&row), "the page has no `{row}`, which {file} states");
    }
    // The schema of a file has as many versions as it has migrations.
    let (_, list) = source("wings/backend/sqlite/schema.rs").split_once("const MIGRATIONS: &[&str] = &[").unwrap();
    let (list, _) = list.split_once("\n];").unwrap();
    let migrations = list.lines().filter(|line| line.starts_with("    \"")).count();
    let row = format!("SQLite file | `user_version` {migrations} |");
    assert!(page.contains(&row), "the page has no `{row}`");
}

#[test]
fn the_count_finds_what_it_is_for() {
    assert!(is_relative("Who goes wakes the next.") && is_relative("As many as fit."));
    assert!(!is_relative("Whole milliseconds.") && !is_relative("Returns what is left."));
    assert_eq!(openings("/// One.\n/// Two.\nfn f() {}\n//// no\n/// Three."), ["One.", "Three."]);
}
