//! The input: lines of arbitrary bytes, each a request or a dead letter, repeated under new ids.
use std::{
    collections::{BTreeMap, HashSet},
    io::{self, BufRead, Read},
};

use crate::{
    ledger::State,
    request::{Invalid, Request},
};

/// Maximum length of a line, so that a file without line ends cannot fill the memory.
const LONGEST: usize = 1 << 20;

/// One line that is not blank.
#[derive(Debug)]
pub struct Line {
    /// Line number from 1, blank lines included, as in an editor.
    pub number: usize,
    pub request: Result<Request, Invalid>,
}

/// Invalid lines by number.
pub type DeadLetters = BTreeMap<usize, DeadLetter>;

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub why: Invalid,
    /// Number of occurrences in the repeated input.
    pub times: usize,
}

/// The work of a run.
#[derive(Debug, Default)]
pub struct Intake {
    /// Number of requests of all classes.
    pub input: usize,
    /// Requests to process, by index in the input.
    pub requests: Vec<(usize, Request)>,
    /// Class of each index of the input before any work.
    pub states: BTreeMap<usize, State>,
    pub duplicates: usize,
    pub dead_letters: DeadLetters,
}

/// Reads lines; a line that is not UTF-8, not JSON or too long is refused, and reading continues.
pub fn read(mut from: impl BufRead) -> io::Result<Vec<Line>> {
    let (mut lines, mut bytes, mut number) = (Vec::new(), Vec::new(), 0);
    loop {
        bytes.clear();
        if from.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(lines);
        }
        number += 1;
        if bytes.len() > LONGEST && bytes.last() != Some(&b'\n') {
            from.skip_until(b'\n')?;
            lines.push(Line { number, request: Err(Invalid::TooLong) });
            continue;
        }
        let text = match bytes.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if number == 1 => rest, // a byte order mark, as some editors leave
            _ => &bytes,
        };
        if !text.trim_ascii().is_empty() {
            lines.push(Line { number, request: Request::parse(text) });
        }
    }
}

impl Intake {
    /// Returns the first `wanted` requests of the repeated input; a repetition has new ids and the same classes.
    pub fn new(lines: &[Line], wanted: usize) -> Self {
        let (mut intake, mut seen) = (Self { input: wanted, ..Self::default() }, HashSet::new());
        for (n, line) in (0..wanted).zip(lines.iter().cycle()) {
            match &line.request {
                Ok(request) => {
                    let request = request.repeated((n / lines.len()) as u64);
                    if seen.insert(request.id) {
                        intake.requests.push((n, request));
                        intake.states.insert(n, State::Received);
                    } else {
                        intake.duplicates += 1;
                        intake.states.insert(n, State::Duplicate);
                    }
                }
                Err(why) => {
                    let letter = DeadLetter { why: why.clone(), times: 0 };
                    intake.states.insert(n, State::DeadLettered { why: why.to_string() });
                    intake.dead_letters.entry(line.number).or_insert(letter).times += 1;
                }
            }
        }
        intake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &[u8]) -> Vec<(usize, bool)> {
        read(text).unwrap().iter().map(|line| (line.number, line.request.is_ok())).collect()
    }

    fn first_line() -> Vec<u8> {
        let all = &include_bytes!("deliveries.jsonl")[..];
        all.split(|b| *b == b'\n').next().unwrap().to_vec()
    }

    #[test]
    fn blank_lines_are_no_requests_but_have_numbers() {
        let mut text = b"\n  \r\n".to_vec();
        text.extend(first_line());
        text.extend(b"\r\n\n{cut off");
        assert_eq!(numbers(&text), [(3, true), (5, false)]);
        assert_eq!(numbers(b""), []);
    }

    #[test]
    fn a_byte_order_mark_does_not_cost_the_first_request() {
        let text = [&b"\xef\xbb\xbf"[..], &first_line()].concat();
        assert_eq!(numbers(&text), [(1, true)]);
    }

    #[test]
    fn a_line_without_end_is_refused_and_the_next_one_read() {
        let mut text = vec![b'x'; 3 * LONGEST];
        text.push(b'\n');
        text.extend(first_line());
        let lines = read(&text[..]).unwrap();
        assert_eq!(lines[0].request, Err(Invalid::TooLong));
        assert!(lines[1].number == 2 && lines[1].request.is_ok());
        assert_eq!(numbers(&[b'x'; 2 * LONGEST]), [(1, false)]);
    }

    #[test]
    fn a_repetition_has_the_classes_of_the_input() {
        let lines = read(&include_bytes!("deliveries.jsonl")[..]).unwrap();
        let dead = |intake: &Intake| intake.dead_letters.values().map(|letter| letter.times).sum::<usize>();
        let (once, thrice) = (Intake::new(&lines, lines.len()), Intake::new(&lines, 3 * lines.len()));
        assert_eq!(once.requests.len() + once.duplicates + dead(&once), lines.len());
        assert_eq!(thrice.requests.len(), 3 * once.requests.len());
        assert_eq!((thrice.duplicates, dead(&thrice)), (3 * once.duplicates, 3 * dead(&once)));
        assert_eq!(Intake::new(&lines, 7).requests.len(), 6); // its fifth line is its second once more
        assert!(Intake::new(&[], 0).requests.is_empty());
    }
}
