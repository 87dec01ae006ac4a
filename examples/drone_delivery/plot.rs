//! The run as a picture: throughput, latency and breaker states over time, as SVG.
use std::{
    fmt::{self, Write},
    time::Duration,
};

use steadfast::circuit_breaker::State;

use crate::{
    figures::Quantiles,
    record::{End, Inner},
    report::Report,
    services::Service,
};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 24.0;
const BUCKET: Duration = Duration::from_millis(100);

const INK: &str = "#1f2933";
const FAINT: &str = "#9aa5b1";
const GRID: &str = "#e4e7eb";
const GOOD: &str = "#3e7cb1";
const LOST: &str = "#c8553d";
const OPEN: &str = "#e8a598";
const PROBING: &str = "#f4d58d";
const SHADE: &str = "#f5f0e6";

/// Draws a run.
pub fn draw(report: &Report) -> String {
    let mut svg = String::new();
    // A `String` takes whatever is written to it.
    let _ = Plot::new(report).write(&mut svg);
    svg
}

struct Plot<'a> {
    report: &'a Report,
    record: &'a Inner,
    /// The end of the time axis: a multiple of 4 s, so that two runs of one kind share their axis.
    end: Duration,
}

impl<'a> Plot<'a> {
    fn new(report: &'a Report) -> Self {
        let seconds = report.elapsed.as_secs_f64();
        let end = if seconds < 2.0 {
            report.elapsed.max(BUCKET)
        } else {
            Duration::from_secs((seconds / 4.0).ceil() as u64 * 4)
        };
        Self { report, record: &report.record, end }
    }

    fn x(&self, at: Duration) -> f64 {
        LEFT + at.as_secs_f64() / self.end.as_secs_f64() * (WIDTH - LEFT - RIGHT)
    }

    fn write(&self, out: &mut impl Write) -> fmt::Result {
        let args = &self.report.args;
        let title = format!(
            "{} - {:?} (seed {})",
            if args.unprotected { "Unprotected" } else { "Protected by steadfast" },
            args.faults,
            args.seed
        );
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">"#
        )?;
        writeln!(out, r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#)?;
        writeln!(out, r#"<text x="{LEFT}" y="24" font-size="16" font-weight="600">{title}</text>"#)?;
        writeln!(
            out,
            r#"<text x="{}" y="24" text-anchor="end" fill="{FAINT}">{}</text>"#,
            WIDTH - RIGHT,
            self.classes()
        )?;
        self.faults(out)?;
        self.throughput(out, 78.0, 130.0)?;
        self.latency(out, 246.0, 110.0)?;
        self.breakers(out, 388.0)?;
        self.time_axis(out, 542.0)?;
        writeln!(out, "</svg>")
    }

    fn classes(&self) -> String {
        let count = |what: fn(&End) -> bool| self.record.done.iter().filter(|d| what(&d.end)).count();
        let (scheduled, lost) = (count(|e| *e == End::Scheduled), count(|e| matches!(e, End::Lost(_))));
        format!("{scheduled} scheduled, {lost} lost, in {:.1} s", self.report.elapsed.as_secs_f64())
    }

    /// The times when a service was made to fail, behind everything else.
    fn faults(&self, out: &mut impl Write) -> fmt::Result {
        for (service, from, lasts) in [self.report.plan.crash, self.report.plan.brownout].into_iter().flatten() {
            if from >= self.end {
                continue;
            }
            let (x, to) = (self.x(from), self.x((from + lasts).min(self.end)));
            writeln!(out, r#"<rect x="{x:.1}" y="54" width="{:.1}" height="472" fill="{SHADE}"/>"#, to - x)?;
            writeln!(out, r#"<text x="{:.1}" y="49" fill="{FAINT}" font-size="11">{service} fails</text>"#, x + 2.0)?;
        }
        Ok(())
    }

    fn throughput(&self, out: &mut impl Write, top: f64, height: f64) -> fmt::Result {
        let buckets = (self.end.as_millis() / BUCKET.as_millis()) as usize + 1;
        let (mut good, mut lost) = (vec![0u32; buckets], vec![0u32; buckets]);
        for done in &self.record.done {
            let bucket = ((done.at.as_millis() / BUCKET.as_millis()) as usize).min(buckets - 1);
            *if matches!(done.end, End::Lost(_)) { &mut lost[bucket] } else { &mut good[bucket] } += 1;
        }
        let per_second = 1.0 / BUCKET.as_secs_f64();
        let most = good.iter().zip(&lost).map(|(g, l)| g + l).max().unwrap_or(1).max(1);
        let scale = nice(f64::from(most) * per_second);
        let y = |n: u32| f64::from(n) * per_second / scale * height;
        self.title(out, top, "requests ended, per second", &[(GOOD, "scheduled or refused"), (LOST, "lost")])?;
        for tick in [0.0, 0.5, 1.0] {
            self.grid(out, top + height * (1.0 - tick), &format!("{:.0}", scale * tick))?;
        }
        let width = self.x(BUCKET) - self.x(Duration::ZERO) - 0.6;
        for (i, (good, lost)) in good.iter().zip(&lost).enumerate() {
            let x = self.x(BUCKET * i as u32);
            let base = top + height;
            for (color, from, n) in [(GOOD, 0.0, *good), (LOST, y(*good), *lost)] {
                if n > 0 {
                    let h = y(n);
                    writeln!(
                        out,
                        r#"<rect x="{x:.1}" y="{:.1}" width="{width:.1}" height="{h:.1}" fill="{color}"/>"#,
                        base - from - h
                    )?;
                }
            }
        }
        Ok(())
    }

    fn latency(&self, out: &mut impl Write, top: f64, height: f64) -> fmt::Result {
        self.title(out, top, "time of an HTTP call", &[(GOOD, "median"), (LOST, "99th percentile")])?;
        // From 1 ms to 10 s, each decade as high as the next.
        let y = |d: Duration| top + height * (1.0 - (d.as_secs_f64().clamp(1e-3, 10.0).log10() + 3.0) / 4.0);
        for (d, label) in [(1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1000, "1 s"), (10_000, "10 s")] {
            self.grid(out, y(Duration::from_millis(d)), label)?;
        }
        let calls = self.record.calls.iter().flatten();
        let buckets = (self.end.as_millis() / (2 * BUCKET).as_millis()) as usize + 1;
        let mut took: Vec<Vec<Duration>> = vec![Vec::new(); buckets];
        for call in calls {
            let bucket = (call.at.as_millis() / (2 * BUCKET).as_millis()) as usize;
            took[bucket.min(buckets - 1)].push(call.took);
        }
        let points: Vec<_> = took.into_iter().enumerate().filter(|(_, took)| !took.is_empty()).collect();
        let points: Vec<_> = points
            .into_iter()
            .map(|(i, took)| (BUCKET * (2 * i as u32 + 1), Quantiles::of(took.into_iter())))
            .collect();
        for (color, pick) in [(GOOD, 0), (LOST, 1)] {
            let line: Vec<String> = points
                .iter()
                .map(|(at, q)| {
                    format!("{:.1},{:.1}", self.x((*at).min(self.end)), y(if pick == 0 { q.p50 } else { q.p99 }))
                })
                .collect();
            writeln!(
                out,
                r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="1.5"/>"#,
                line.join(" ")
            )?;
        }
        Ok(())
    }

    fn breakers(&self, out: &mut impl Write, top: f64) -> fmt::Result {
        let legend: &[(&str, &str)] = if self.report.args.unprotected {
            &[(GOOD, "calls"), (LOST, "failed calls")]
        } else {
            &[(GOOD, "calls"), (LOST, "failed calls"), (OPEN, "breaker open"), (PROBING, "probing")]
        };
        self.title(out, top, "calls and breakers", legend)?;
        for (i, service) in Service::ALL.into_iter().enumerate() {
            let (y, height) = (top + 6.0 + i as f64 * 26.0, 20.0);
            writeln!(out, r#"<text x="{}" y="{}" text-anchor="end">{service}</text>"#, LEFT - 8.0, y + 14.0)?;
            writeln!(
                out,
                r#"<rect x="{LEFT}" y="{y}" width="{}" height="{height}" fill="none" stroke="{GRID}"/>"#,
                WIDTH - LEFT - RIGHT
            )?;
            let turns = &self.record.turns[service as usize];
            for (n, turn) in turns.iter().enumerate() {
                let color = match turn.state {
                    State::Open | State::Isolated => OPEN,
                    State::HalfOpen => PROBING,
                    State::Closed => continue,
                };
                let to = turns.get(n + 1).map_or(self.report.elapsed, |next| next.at);
                let (x, to) = (self.x(turn.at), self.x(to));
                let width = (to - x).max(0.8);
                writeln!(out, r#"<rect x="{x:.1}" y="{y}" width="{width:.1}" height="{height}" fill="{color}"/>"#)?;
            }
            self.calls(out, service, y, height)?;
        }
        Ok(())
    }

    /// A service's calls as bars along its lane: the failed ones from above.
    fn calls(&self, out: &mut impl Write, service: Service, y: f64, height: f64) -> fmt::Result {
        let calls = &self.record.calls[service as usize];
        let buckets = (self.end.as_millis() / BUCKET.as_millis()) as usize + 1;
        let (mut ok, mut failed) = (vec![0u32; buckets], vec![0u32; buckets]);
        for call in calls {
            let bucket = ((call.at.as_millis() / BUCKET.as_millis()) as usize).min(buckets - 1);
            *if call.ok { &mut ok[bucket] } else { &mut failed[bucket] } += 1;
        }
        let most = f64::from(ok.iter().zip(&failed).map(|(a, b)| a + b).max().unwrap_or(1).max(1));
        let width = self.x(BUCKET) - self.x(Duration::ZERO) - 0.6;
        for (i, (ok, failed)) in ok.iter().zip(&failed).enumerate() {
            let x = self.x(BUCKET * i as u32);
            let scale = |n: u32| (f64::from(n) / most).sqrt() * height / 2.0;
            if *ok > 0 {
                let h = scale(*ok);
                writeln!(
                    out,
                    r#"<rect x="{x:.1}" y="{:.1}" width="{width:.1}" height="{h:.1}" fill="{GOOD}"/>"#,
                    y + height - h
                )?;
            }
            if *failed > 0 {
                let h = scale(*failed);
                writeln!(out, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{h:.1}" fill="{LOST}"/>"#)?;
            }
        }
        Ok(())
    }

    fn title(&self, out: &mut impl Write, top: f64, title: &str, legend: &[(&str, &str)]) -> fmt::Result {
        let y = top - 8.0;
        writeln!(out, r#"<text x="{LEFT}" y="{y}" font-weight="600">{title}</text>"#)?;
        let mut x = WIDTH - RIGHT;
        for (color, label) in legend.iter().rev() {
            writeln!(out, r#"<text x="{x:.0}" y="{y}" text-anchor="end" font-size="11">{label}</text>"#)?;
            x -= label.len() as f64 * 6.2 + 4.0;
            writeln!(out, r#"<rect x="{:.0}" y="{:.0}" width="9" height="9" fill="{color}"/>"#, x - 9.0, y - 9.0)?;
            x -= 22.0;
        }
        Ok(())
    }

    fn grid(&self, out: &mut impl Write, y: f64, label: &str) -> fmt::Result {
        writeln!(out, r#"<line x1="{LEFT}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="{GRID}"/>"#, WIDTH - RIGHT)?;
        writeln!(
            out,
            r#"<text x="{}" y="{:.1}" text-anchor="end" fill="{FAINT}" font-size="11">{label}</text>"#,
            LEFT - 8.0,
            y + 4.0
        )
    }

    fn time_axis(&self, out: &mut impl Write, y: f64) -> fmt::Result {
        let seconds = self.end.as_secs_f64();
        let step = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0].into_iter().find(|s| seconds / s <= 12.0).unwrap_or(60.0);
        for i in 0..=(seconds / step) as u32 {
            let at = step * f64::from(i);
            let x = self.x(Duration::from_secs_f64(at));
            writeln!(
                out,
                r#"<text x="{x:.1}" y="{y}" text-anchor="middle" fill="{FAINT}" font-size="11">{at} s</text>"#
            )?;
        }
        Ok(())
    }
}

/// The next round number.
fn nice(n: f64) -> f64 {
    let unit = 10f64.powf(n.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * unit).find(|top| *top >= n).unwrap_or(n)
}
