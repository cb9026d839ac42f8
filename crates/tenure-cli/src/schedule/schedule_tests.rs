//! Every slot comes once, in every time zone, however the clocks change.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;

fn cron(expression: &str, zone: &str) -> Schedule {
    Schedule::cron(expression, Some(zone)).unwrap()
}

fn ms(at: &str) -> u64 {
    at.parse::<Timestamp>().unwrap().as_millisecond().try_into().unwrap()
}

/// All slots after `from` and at `to` or before, as local times with their offset.
fn slots(schedule: &Schedule, zone: &str, from: &str, to: &str) -> Vec<String> {
    let zone = TimeZone::get(zone).unwrap();
    let show = |slot: &Slot| {
        let at = Timestamp::from_millisecond(slot.at.try_into().unwrap()).unwrap();
        at.to_zoned(zone.clone()).strftime("%d %H:%M%:z").to_string()
    };
    let next = |last: &Slot| schedule.next(last.at);
    let first = schedule.next(ms(from));
    std::iter::successors(first, next).take_while(|s| s.at <= ms(to)).map(|s| show(&s)).collect()
}

#[test]
fn a_slot_is_the_number_of_whole_periods() {
    let schedule = Schedule::every(Duration::from_secs(5)).unwrap();
    let slot = Slot { at: 1_750_258_800_000, number: 350_051_760 };
    assert_eq!(schedule.current(1_750_258_800_000), Some(slot));
    assert_eq!(schedule.current(1_750_258_804_999), Some(slot));
    assert_eq!(schedule.next(1_750_258_799_999), Some(slot));
    assert_eq!(schedule.next(1_750_258_800_000).unwrap().number, 350_051_761);
    let days = Schedule::every(Duration::from_secs(86_400)).unwrap();
    assert_eq!(
        days.current(ms("2025-06-18T23:59:59.999Z")).unwrap().at,
        ms("2025-06-18T00:00:00Z")
    );
}

#[test]
fn a_cron_slot_is_its_second() {
    let schedule = cron("0 17 * * *", "Europe/Berlin");
    let slot = Slot { at: 1_750_258_800_000, number: 1_750_258_800 };
    assert_eq!(schedule.current(1_750_258_800_000), Some(slot));
    assert_eq!(schedule.next(1_750_258_799_999), Some(slot));
    assert_eq!(schedule.current(1_750_258_799_999).unwrap().number, 1_750_258_800 - 86_400);
}

#[test]
fn no_period_is_shorter_than_a_millisecond() {
    for wrong in
        [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1_500), Duration::MAX]
    {
        let error = Schedule::every(wrong).unwrap_err().to_string();
        assert!(error.contains("like 5s"), "{error}");
    }
    let schedule = Schedule::every(Duration::from_millis(1)).unwrap();
    assert_eq!(schedule.current(17).unwrap(), Slot { at: 17, number: 17 });
}

#[test]
fn beyond_the_last_date_there_are_no_slots() {
    let all = [
        Schedule::every(Duration::from_millis(1)).unwrap(),
        Schedule::every(Duration::from_millis(u64::MAX)).unwrap(),
        cron("* * * * * *", "Europe/Berlin"),
        cron("30 2 * * *", "America/New_York"),
    ];
    for schedule in all {
        for now in [0, 1, LAST_MS - 1, LAST_MS, LAST_MS + 1, u64::MAX - 1, u64::MAX] {
            let (current, next) = (schedule.current(now), schedule.next(now));
            assert!(current.is_none_or(|slot| slot.at <= now && slot.at <= LAST_MS));
            assert!(next.is_none_or(|slot| slot.at > now && slot.at <= LAST_MS));
        }
    }
}

#[test]
fn an_omitted_time_is_due_when_the_clock_is_set_forward() {
    let day = |expression| {
        let schedule = cron(expression, "Europe/Berlin");
        slots(&schedule, "Europe/Berlin", "2025-03-29T12:00:00Z", "2025-03-30T12:00:00Z")
    };
    assert_eq!(day("30 2 * * *"), ["30 03:00+02:00"]);
    assert_eq!(day("0,10,20 2 * * *"), ["30 03:00+02:00"]);
    assert_eq!(day("0 1,2,3,4 * * *"), ["30 01:00+01:00", "30 03:00+02:00", "30 04:00+02:00"]);
    assert_eq!(day("30 1-3 * * *"), ["30 01:30+01:00", "30 03:00+02:00", "30 03:30+02:00"]);
    // Only on the days of the week that the expression allows.
    assert_eq!(day("30 2 * * MON").len(), 0);
}

#[test]
fn a_repeated_time_is_due_the_first_time() {
    let day = |expression| {
        let schedule = cron(expression, "Europe/Berlin");
        slots(&schedule, "Europe/Berlin", "2025-10-25T23:00:00Z", "2025-10-26T03:00:00Z")
    };
    assert_eq!(day("30 2 * * *"), ["26 02:30+02:00"]);
    assert_eq!(day("0 2,3 * * *"), ["26 02:00+02:00", "26 03:00+01:00"]);
    assert_eq!(day("59 2 * * *"), ["26 02:59+02:00"]);
}

#[test]
fn in_a_repeated_hour_all_its_slots_have_passed() {
    let schedule = cron("*/10 2 * * *", "Europe/Berlin");
    let now = ms("2025-10-26T01:10:00Z");
    assert_eq!(schedule.current(now).unwrap().at, ms("2025-10-26T00:50:00Z"));
    assert_eq!(schedule.next(now).unwrap().at, ms("2025-10-27T01:00:00Z"));
}

#[test]
fn every_hour_means_every_elapsed_hour() {
    let day = |from, to| {
        let schedule = cron("15 * * * *", "Europe/Berlin");
        slots(&schedule, "Europe/Berlin", from, to)
    };
    assert_eq!(
        day("2025-03-29T23:30:00Z", "2025-03-30T02:30:00Z"),
        ["30 01:15+01:00", "30 03:15+02:00", "30 04:15+02:00"]
    );
    assert_eq!(
        day("2025-10-25T23:30:00Z", "2025-10-26T02:30:00Z"),
        ["26 02:15+02:00", "26 02:15+01:00", "26 03:15+01:00"]
    );
}

#[test]
fn an_omitted_day_has_its_slot() {
    // Samoa crossed the date line: there was no 30 December.
    let schedule = cron("0 12 * * *", "Pacific/Apia");
    assert_eq!(
        slots(&schedule, "Pacific/Apia", "2011-12-29T00:00:00Z", "2011-12-31T12:00:00Z"),
        ["29 12:00-10:00", "31 00:00+14:00", "31 12:00+14:00"]
    );
}

#[test]
fn rare_days_are_found() {
    let first = |expression, from: &str| {
        slots(&cron(expression, "UTC"), "UTC", from, "2200-01-01T00:00:00Z").first().cloned()
    };
    assert_eq!(first("0 0 L 12 *", "2025-06-01T00:00:00Z").unwrap(), "31 00:00+00:00");
    assert_eq!(first("0 0 29 2 *", "2096-03-01T00:00:00Z").unwrap(), "29 00:00+00:00");
    assert_eq!(first("0 0 * 12 FRI#L", "2025-06-01T00:00:00Z").unwrap(), "26 00:00+00:00");
    assert_eq!(first("30 0 0 1 1 *", "2025-06-01T00:00:00Z").unwrap(), "01 00:00+00:00");
}

/// Between two days each time of day comes once, however the clocks change.
#[test]
fn each_time_of_day_comes_once_a_day_all_over_the_world() {
    for zone in ZONES {
        for time in ["0 0", "30 0", "30 1", "0 2", "30 2", "59 2", "0 3", "45 23"] {
            let schedule = cron(&format!("{time} * * *"), zone);
            let (minute, hour) = time.split_once(' ').unwrap();
            let start = DateTime::constant(2018, 1, 1, 12, 0, 0, 0);
            let zone = TimeZone::get(zone).unwrap();
            let mut last = ms_in(&zone, start);
            for day in 1..3 * 366 {
                let noon = start.checked_add(jiff::Span::new().days(day)).unwrap();
                let until = ms_in(&zone, noon);
                assert_eq!(schedule.count(last, until, 9), 1, "{hour}:{minute} before {noon}");
                last = until;
            }
        }
    }
}

fn ms_in(zone: &TimeZone, date: DateTime) -> u64 {
    zone.to_timestamp(date).unwrap().as_millisecond().try_into().unwrap()
}

const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Africa/Casablanca",
    "Pacific/Apia",
];

const EXPRESSIONS: [&str; 16] = [
    "* * * * *",
    "*/7 * * * *",
    "15 * * * *",
    "*/20 0-23 * * *",
    "0 */2 * * *",
    "30 2 * * *",
    "*/10 1,2 * * *",
    "59 23 * * *",
    "0 0 * * *",
    "0 3 * * SUN",
    "30 1 1 * *",
    "0 0 29 2 *",
    "0 12 L * *",
    "0 0 1 1 MON",
    "30 */15 2 * * *",
    "*/13 * * * * *",
];

/// A time zone and a moment in it, more often near a change of the clocks, where errors are likely.
fn moments() -> impl Strategy<Value = (&'static str, u64)> {
    let changes = |zone: &'static str| {
        let from: Timestamp = "2005-01-01T00:00:00Z".parse().unwrap();
        let changes: Vec<(&str, u64)> = TimeZone::get(zone)
            .unwrap()
            .following(from)
            .take(40)
            .map(|change| (zone, change.timestamp().as_millisecond().try_into().unwrap()))
            .collect();
        changes
    };
    let changes: Vec<_> = ZONES.iter().flat_map(|zone| changes(zone)).collect();
    let near = |around: u64| {
        (proptest::sample::select(changes.clone()), 0..2 * around)
            .prop_map(move |((zone, at), off)| (zone, at + off - around))
    };
    prop_oneof![
        1 => (proptest::sample::select(&ZONES[..]), 0..4_000_000_000_000_u64),
        1 => near(86_400_000),
        4 => near(2 * 3_600_000),
    ]
}

/// A schedule and a moment at which to query it.
fn cases() -> impl Strategy<Value = (Schedule, u64)> {
    let crons = (proptest::sample::select(&EXPRESSIONS[..]), moments());
    prop_oneof![
        1 => (1..100_000_000_u64, 0..4_000_000_000_000_u64)
            .prop_map(|(period, now)| (Schedule::Every(period), now)),
        4 => crons.prop_map(|(expression, (zone, now))| (cron(expression, zone), now)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_next_slot_is_the_current_one_when_it_comes((schedule, now) in cases()) {
        let next = schedule.next(now).unwrap();
        prop_assert!(next.at > now);
        prop_assert_eq!(schedule.current(next.at), Some(next));
        prop_assert_eq!(schedule.next(next.at - 1), Some(next));
        // Just before it, the current slot was the previous one.
        prop_assert_eq!(schedule.current(next.at - 1), schedule.current(now));
        if let Some(current) = schedule.current(now) {
            prop_assert!(current.at <= now && current < next);
            prop_assert_eq!(schedule.current(current.at), Some(current));
            prop_assert_eq!(schedule.next(current.at), Some(next));
        }
    }

    #[test]
    fn slots_only_grow((schedule, now) in cases(), later in 0..400_000_000_u64) {
        let (a, b) = (schedule.current(now), schedule.current(now + later));
        prop_assert!(a <= b, "{a:?} {b:?}");
        if let (Some(a), Some(b)) = (a, b) {
            prop_assert_eq!(a.number.cmp(&b.number), a.at.cmp(&b.at));
            let many = schedule.count(now, now + later, 1_000);
            prop_assert_eq!(many == 0, a == b);
        }
    }

    /// Compares with a wall clock that is advanced minute by minute, without the code under test.
    #[test]
    fn a_wall_clock_agrees((zone, now) in moments()) {
        let schedule = cron("*/7 * * * *", zone);
        let zone = TimeZone::get(zone).unwrap();
        let mut expected = Vec::new();
        let start = now / 60_000 * 60_000;
        for minute in 1..=300 {
            let at = start + minute * 60_000;
            let shown = zone.to_datetime(Timestamp::from_millisecond(at as i64).unwrap());
            if shown.minute() % 7 == 0 && shown.second() == 0 {
                expected.push(at);
            }
        }
        let first = schedule.next(start);
        let slots: Vec<u64> = std::iter::successors(first, |slot| schedule.next(slot.at))
            .map(|slot| slot.at)
            .take_while(|at| *at <= start + 300 * 60_000)
            .collect();
        // Historical offsets included seconds; steps of whole minutes miss those.
        if now > 1_000_000_000_000 {
            prop_assert_eq!(slots, expected);
        }
    }

    #[test]
    fn no_expression_panics(expression in "[0-9*/,@#LWA-Zö -]{0,20}") {
        if let Err(error) = Schedule::cron(&expression, Some("UTC")) {
            let error = error.to_string();
            prop_assert!(error.starts_with("--cron '") && !error.contains('\n'), "{}", error);
        }
    }
}

#[test]
fn an_invalid_expression_is_reported_with_its_position() {
    for (expression, column, what) in [
        ("0 25 * * *", 3, "'25' is no hour: expected 0-23"),
        ("61 2 * * *", 1, "'61' is no minute: expected 0-59"),
        ("0,5,x 2 * * *", 5, "'x' is no minute"),
        ("0 1-25 * * *", 5, "'25' is no hour"),
        ("0 5-1 * * *", 3, "'5-1' is no hour"),
        ("*/0 * * * *", 3, "'0' is no minute"),
        ("*/x * * * *", 3, "'x' is no minute"),
        ("0 2 32 * *", 5, "'32' is no day of month: expected 1-31"),
        ("0 2 * 13 *", 7, "'13' is no month: expected 1-12"),
        ("0 2 * * 8", 9, "'8' is no day of week: expected 0-7"),
        ("0 2 * * MON-FRY", 13, "'FRY' is no day of week"),
        ("  0   2 * * 9", 13, "'9' is no day of week"),
        ("0 2 * *", 8, "the day of week is missing"),
        ("0 2", 4, "the day of month is missing"),
        ("", 1, "the minute is missing"),
        ("   ", 1, "the minute is missing"),
        ("60 0 2 * * *", 1, "'60' is no second"),
        ("0 0 2 * * * 2025", 13, "one field too many"),
        ("@dayly", 1, "expected @hourly, @daily"),
        ("0, 2 * * *", 3, "a piece of the minute is missing"),
        ("JAN 2 * * *", 1, "'JAN' is no minute"),
        ("0 2 * FRI *", 7, "'FRI' is no month"),
        ("0 2 * * JAN", 9, "'JAN' is no day of week"),
        ("0 2 * * friday", 9, "'friday' is no day of week"),
        ("ö 2 * * *", 1, "'ö' is no minute"),
        ("0 ö 2", 3, "'ö' is no hour"),
    ] {
        let error = Schedule::cron(expression, Some("UTC")).unwrap_err().to_string();
        let start = format!("--cron '{expression}', character {column}: ");
        assert!(error.starts_with(&start), "{error}, not {start}");
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn common_expressions_are_accepted() {
    for expression in [
        "@hourly",
        "@Daily",
        " 0\t2 * * * ",
        "00 02 01 01 *",
        "0 9-17 * * mon-fri",
        "*/15,7 8-18/2 1,15 jan,Jul *",
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 LW * *",
        "0 0 * * 5#3",
        "0 0 * * FRI#2",
        "0 0 * * 5L",
        "0 0 * * FRIL",
        "0 0 ? * 7",
        "*/10 * * * * *",
    ] {
        Schedule::cron(expression, Some("UTC")).unwrap();
    }
}

#[test]
fn an_expression_that_never_comes_is_refused() {
    let error = Schedule::cron("0 0 30 2 *", Some("UTC")).unwrap_err().to_string();
    assert!(error.contains("'0 0 30 2 *' never comes"), "{error}");
}

#[test]
fn an_unknown_time_zone_is_refused() {
    for wrong in ["Mars/Olympus", "", "CEST+2", "../../etc/passwd"] {
        let error = Schedule::cron("@daily", Some(wrong)).unwrap_err().to_string();
        assert!(error.contains("Europe/Berlin"), "{error}");
    }
    for right in [None, Some("local"), Some("UTC"), Some("utc"), Some("Asia/Tokyo")] {
        Schedule::cron("@daily", right).unwrap();
    }
}
