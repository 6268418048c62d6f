//! `--matrix`: every pair of ranks alone, while the others wait.

use super::case::Case;
use super::control::Control;
use super::measure::{Player, Setting};
use super::options::Kind;
use super::plot::{self, Drawn, HEAD_HEIGHT};
use super::report::{Report, Row};
use crate::error::{Error, Result};
use crate::given;
use oxccl_plan::words::counted;
use oxccl_runtime::config::Config;
use plotters::prelude::*;

/// The figure of a pair that a table shows.
#[derive(Clone, Copy)]
enum Figure {
    Time,
    Bandwidth,
}

impl Figure {
    fn of(self, row: &Row) -> f64 {
        match self {
            Figure::Time => row.time_us,
            Figure::Bandwidth => row.algbw,
        }
    }

    fn title(self, bytes: u64) -> String {
        let size = counted(bytes, "byte", "bytes");
        match self {
            Figure::Time => format!("time of an exchange of {size} (us)"),
            Figure::Bandwidth => format!("bandwidth of {size} each way at once (GB/s)"),
        }
    }
}

/// Has every two ranks exchange data of the smallest and of the largest size, pair after pair, and
/// prints a table of each. Returns the number of wrong elements.
pub(super) fn measure(
    setting: &Setting<'_>,
    everyone: &Control,
    players: &mut [Player<'_>],
    report: &mut Report<'_>,
) -> Result<u64> {
    let (options, nranks) = (setting.options, setting.nranks);
    if nranks < 2 {
        let why = "--matrix: there is one rank; expected two at least, by --ranks or a launcher";
        return Err(Error::Options(why.to_owned()));
    }
    let (dtype, op) = (options.dtypes[0], options.ops[0]);
    let mut figures: Vec<(Figure, Vec<Row>)> = Vec::new();
    for (figure, bytes) in
        [(Figure::Time, options.min_bytes), (Figure::Bandwidth, options.max_bytes)]
    {
        let mut rows = Vec::new();
        for pair in (0..nranks).flat_map(|a| (a + 1..nranks).map(move |b| [a, b])) {
            let all = Case::new(Kind::SendRecvPairs, nranks, 0, dtype, op, bytes);
            let case = Case { pair: Some(pair), ..all };
            let [a, b] = pair;
            let size = counted(bytes, "byte", "bytes");
            report.working(format!("{size} between ranks {a} and {b}"));
            rows.append(&mut setting.alternate(everyone, players, &case)?);
        }
        report.rest();
        report.keep(&rows)?;
        figures.push((figure, rows));
    }
    if report.is_leader() {
        for (figure, rows) in &figures {
            report.say(table(*figure, rows, nranks).trim_end());
        }
        if let Some(path) = &options.plot {
            let failed = |cause| Error::File { path: path.clone(), cause };
            let titles = plot::titles(report.head(), &figures[0].1);
            let svg = draw(&titles, &figures, nranks).map_err(|e| failed(e.to_string()))?;
            std::fs::write(path, svg).map_err(|e| failed(e.to_string()))?;
            report.say(format_args!("# plot in {path}"));
        }
    }
    let wrong = report.finish()?;
    if options.variables {
        let all = given::variables(Config::get());
        // Names and texts can always be written.
        let own = serde_json::to_string(&all).unwrap_or_default();
        let texts = everyone.texts(nranks, &own)?;
        for (rank, text) in texts.iter().enumerate().filter(|_| report.is_leader()) {
            // A row of the report may end on the line before.
            println!("\n{{\"rank\": {rank}, \"variables\": {text}}}");
        }
    }
    Ok(wrong)
}

/// Returns a pair's figure, whichever of its ranks is named first.
fn value(figure: Figure, rows: &[Row], pair: [u32; 2]) -> Option<f64> {
    let sorted = [pair[0].min(pair[1]), pair[0].max(pair[1])];
    rows.iter().find(|row| row.pair == Some(sorted)).map(|row| figure.of(row))
}

fn table(figure: Figure, rows: &[Row], nranks: u32) -> String {
    let bytes = rows.first().map_or(0, |row| row.bytes);
    let columns: String = (0..nranks).map(|rank| format!("{rank:>9}")).collect();
    let mut text = format!("#\n# {}\n# rank{columns}\n", figure.title(bytes));
    for a in 0..nranks {
        text += &format!("{a:>6}");
        for b in 0..nranks {
            text += &match value(figure, rows, [a, b]) {
                Some(value) => format!("{value:>9.2}"),
                None => format!("{:>9}", "-"),
            };
        }
        text += "\n";
    }
    text
}

/// Pixels of a pair's field.
const FIELD: i32 = 56;
const MARGIN: i32 = 48;
/// Pixels of a title, at least.
const WIDTH: i32 = 400;

/// Draws both tables side by side, the larger values darker, below what they are of.
fn draw(titles: &[String; 2], figures: &[(Figure, Vec<Row>)], nranks: u32) -> Drawn<String> {
    let (side, mut svg) = (nranks as i32 * FIELD, String::new());
    let width = side.max(WIDTH) + MARGIN;
    {
        let height = (side + 2 * MARGIN) as u32 + HEAD_HEIGHT;
        let size = (width as u32 * figures.len() as u32, height);
        let whole = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (head, root) = whole.split_vertically(HEAD_HEIGHT);
        plot::heading(&head, titles)?;
        for (i, (figure, rows)) in figures.iter().enumerate() {
            let left = i as i32 * width + MARGIN;
            let font = |size| ("sans-serif", size).into_font();
            let title = figure.title(rows.first().map_or(0, |row| row.bytes));
            root.draw(&Text::new(title, (left, 8), font(14)))?;
            root.draw(&Text::new("rank", (left - 40, MARGIN - 18), font(13)))?;
            let values = || rows.iter().map(|row| figure.of(row));
            let (low, high) =
                values().fold((f64::MAX, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
            for a in 0..nranks {
                let at = |rank: u32| MARGIN + rank as i32 * FIELD;
                let place = (left - 20, at(a) + FIELD / 2 - 6);
                root.draw(&Text::new(a.to_string(), place, font(13)))?;
                let place = (left + a as i32 * FIELD + FIELD / 2 - 4, MARGIN - 18);
                root.draw(&Text::new(a.to_string(), place, font(13)))?;
                for b in 0..nranks {
                    let Some(value) = value(*figure, rows, [a, b]) else { continue };
                    let share = if high > low { (value - low) / (high - low) } else { 0.5 };
                    let (x, y) = (left + b as i32 * FIELD, at(a));
                    let field = [(x, y), (x + FIELD - 2, y + FIELD - 2)];
                    let colour = HSLColor(0.58, 0.6, 0.92 - 0.35 * share);
                    root.draw(&Rectangle::new(field, colour.filled()))?;
                    let text = format!("{value:.1}");
                    root.draw(&Text::new(text, (x + 8, y + FIELD / 2 - 7), font(12)))?;
                }
            }
        }
        whole.present()?;
    }
    Ok(svg)
}
