// Calls redis_rate from many goroutines, and prints what the benchmark of Tollgate reads:
//
//	result REQUESTS MICROSECONDS P50_MICROSECONDS P99_MICROSECONDS FAILURES
//	cpu MICROSECONDS
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func cpu() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return usage.Utime.Nano()/1000 + usage.Stime.Nano()/1000
}

func main() {
	url := flag.String("redis", "", "the URL of a Redis")
	callers := flag.Int("callers", 64, "goroutines that each have one check in flight")
	keys := flag.Int("keys", 100000, "random keys")
	seconds := flag.Float64("seconds", 2, "the time of the run")
	flag.Parse()

	options, err := redis.ParseURL(*url)
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: 1, Burst: 1000000, Period: time.Minute}

	names := make([]string, *keys)
	for i := range names {
		names[i] = fmt.Sprintf("%016x", i)
	}
	var (
		mutex     sync.Mutex
		group     sync.WaitGroup
		latencies []int64
		failures  int
	)
	before, start := cpu(), time.Now()
	end := start.Add(time.Duration(*seconds * float64(time.Second)))
	for caller := 0; caller < *callers; caller++ {
		group.Add(1)
		go func(seed int64) {
			defer group.Done()
			random := rand.New(rand.NewSource(seed))
			var own []int64
			failed := 0
			for sent := time.Now(); sent.Before(end); {
				answer, err := limiter.Allow(context.Background(), names[random.Intn(len(names))], limit)
				if err != nil || answer.Allowed != 1 {
					failed++
				}
				now := time.Now()
				own = append(own, now.Sub(sent).Microseconds())
				sent = now
			}
			mutex.Lock()
			defer mutex.Unlock()
			latencies = append(latencies, own...)
			failures += failed
		}(int64(caller))
	}
	group.Wait()
	elapsed, used := time.Since(start).Microseconds(), cpu()-before
	sort.Slice(latencies, func(i, j int) bool { return latencies[i] < latencies[j] })
	at := func(percent int) string {
		if len(latencies) == 0 {
			return "0"
		}
		return strconv.FormatInt(latencies[len(latencies)*percent/100], 10)
	}
	fmt.Println("result", len(latencies), elapsed, at(50), at(99), failures)
	fmt.Println("cpu", used)
}
