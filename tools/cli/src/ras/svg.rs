//! A picture of the latest collectives: who has done which of them, and who waits for whom.

use super::flight::state;
use oxccl_plan::words::counted;
use oxccl_runtime::ras::job::{Comm, Member, communicators};
use oxccl_runtime::ras::verdict::Verdict;
use oxccl_runtime::recorder::read::Process;
use plotters::prelude::*;
use std::collections::BTreeMap;

type Failure = Box<dyn std::error::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Pixels of a character, of a line of text, of a field, and around everything.
const CHARACTER: f64 = 7.0;
const LINE: i32 = 20;
const FIELD: i32 = 34;
const EDGE: i32 = 12;
/// Characters of a line of the causes.
const WRAPPED: usize = 130;
/// Collectives of each communicator, the latest ones.
const COLUMNS: u64 = 12;

const DONE: RGBColor = RGBColor(160, 215, 150);
const INSIDE: RGBColor = RGBColor(250, 214, 130);
const CALLED: RGBColor = RGBColor(205, 220, 240);
const MISSING: RGBColor = RGBColor(255, 255, 255);
const FAULT: RGBColor = RGBColor(200, 40, 30);
const INK: RGBColor = RGBColor(40, 40, 40);

/// A line of the picture.
enum Row<'a> {
    Text(String, RGBColor),
    /// The numbers of the collectives above the fields.
    Numbers(std::ops::Range<u64>),
    /// A rank, the collectives shown, and whether the rank is at fault.
    Rank(Member<'a>, std::ops::Range<u64>, bool),
}

/// Returns the picture of a job and of what holds it up.
pub(super) fn picture(processes: &[Process], causes: &[Verdict]) -> Result<String, Failure> {
    let comms = communicators(processes);
    let mut rows: Vec<Row<'_>> = Vec::new();
    for verdict in causes {
        rows.extend(wrapped(&verdict.text).into_iter().map(|line| Row::Text(line, FAULT)));
    }
    comms.iter().for_each(|comm| rows.extend(of_comm(comm, causes)));
    let legend = "green: done; yellow: a rank is in it; blue: called; white: not called";
    rows.extend([Row::Text(String::new(), INK), Row::Text(legend.to_owned(), INK)]);
    let label = comms.iter().flat_map(|comm| &comm.members).map(|m| extent(&name(m))).max();
    let fields_at = EDGE + label.unwrap_or(0) + EDGE;
    let width = rows.iter().map(|row| width(row, fields_at)).max().unwrap_or(0) + EDGE;
    let whole = rows.iter().map(height).sum::<i32>() + 2 * EDGE;
    let mut svg = String::new();
    {
        let size = (width.max(1) as u32, whole as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut top = EDGE;
        for row in &rows {
            draw(&area, row, fields_at, top)?;
            top += height(row);
        }
        area.present()?;
    }
    Ok(svg)
}

fn extent(text: &str) -> i32 {
    (text.chars().count() as f64 * CHARACTER) as i32
}

/// Returns a text in lines.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let len = lines[last].chars().count() + word.chars().count();
        match lines[last].is_empty() {
            true => lines[last].push_str(word),
            false if len < WRAPPED => lines[last].extend([" ", word]),
            false => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the lines of a communicator: its title, its ranks, and what its collectives are.
fn of_comm<'a>(comm: &Comm<'a>, causes: &[Verdict]) -> Vec<Row<'a>> {
    let end = comm.members.iter().map(|member| member.rank.collectives).max().unwrap_or(0);
    let shown = end.saturating_sub(COLUMNS)..end;
    let at_fault = |rank: u32| {
        let is = |of: &&Verdict| of.comm == comm.number && of.ranks.contains(&rank);
        causes.iter().any(|of| is(&of) && of.cause.holds_up())
    };
    let title = format!("{}, {}", comm.title(), counted(comm.nranks, "rank", "ranks"));
    let mut rows = vec![Row::Text(String::new(), INK), Row::Text(title, INK)];
    rows.push(Row::Numbers(shown.clone()));
    for member in &comm.members {
        rows.push(Row::Rank(*member, shown.clone(), at_fault(member.rank.rank)));
    }
    let mut texts: BTreeMap<u64, &str> = BTreeMap::new();
    for number in shown {
        let what = comm.members.iter().find_map(|member| member.collective(number));
        let what = what.map_or("not recorded any more", |op| op.what.as_str());
        // Calls after one of the same kind are not named again.
        if texts.values().next_back() != Some(&what) {
            texts.insert(number, what);
        }
    }
    let named = texts.into_iter().map(|(number, what)| format!("from {number}: {what}"));
    rows.extend(named.map(|text| Row::Text(text, INK)));
    rows
}

fn name(member: &Member<'_>) -> String {
    format!("rank {}  {}", member.rank.rank, member.place())
}

/// Returns the words for what a rank waits for; none if it does not wait.
fn wait(member: &Member<'_>) -> String {
    member.rank.waiting.map_or_else(String::new, |waiting| super::wait(member, &waiting))
}

fn width(row: &Row<'_>, fields_at: i32) -> i32 {
    match row {
        Row::Text(text, _) => EDGE + extent(text),
        Row::Numbers(shown) => fields_at + (shown.end - shown.start) as i32 * FIELD,
        Row::Rank(member, shown, _) => {
            fields_at + (shown.end - shown.start) as i32 * FIELD + EDGE + extent(&wait(member))
        }
    }
}

fn height(row: &Row<'_>) -> i32 {
    if matches!(row, Row::Rank(..)) { FIELD } else { LINE }
}

fn draw(area: &Area<'_>, row: &Row<'_>, fields_at: i32, top: i32) -> Result<(), Failure> {
    let font = |colour: &RGBColor| ("sans-serif", 13).into_font().color(colour);
    let text = |text: String, at: (i32, i32), colour: &RGBColor| {
        area.draw(&Text::new(text, at, font(colour)))
    };
    match row {
        Row::Text(line, colour) => text(line.clone(), (EDGE, top + 3), colour)?,
        Row::Numbers(shown) => {
            for (column, number) in (0..).zip(shown.clone()) {
                text(number.to_string(), (fields_at + column * FIELD + 6, top + 3), &INK)?;
            }
        }
        Row::Rank(member, shown, at_fault) => {
            let colour = if *at_fault { FAULT } else { INK };
            let middle = top + FIELD / 2 - 7;
            text(name(member), (EDGE, middle), &colour)?;
            for (column, number) in (0..).zip(shown.clone()) {
                let left = fields_at + column * FIELD;
                let corners = [(left, top), (left + FIELD - 4, top + FIELD - 4)];
                area.draw(&Rectangle::new(corners, field(member, number).filled()))?;
                area.draw(&Rectangle::new(corners, colour.stroke_width(1)))?;
            }
            let columns = (shown.end - shown.start) as i32;
            text(wait(member), (fields_at + columns * FIELD + EDGE, middle), &colour)?;
        }
    }
    Ok(())
}

/// Returns the colour of a collective at a rank.
fn field(member: &Member<'_>, number: u64) -> RGBColor {
    let rank = member.rank;
    if number >= rank.collectives {
        return MISSING;
    }
    match member.collective(number).map(|op| state(member.process, rank, op)) {
        Some("completed") | None => DONE,
        Some("started") => INSIDE,
        Some(_) => CALLED,
    }
}
