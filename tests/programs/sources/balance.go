// balance ROUNDS: goroutines on channels and a mutex, maps and short-lived garbage, timers and a context.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

type node struct {
	left, right *node
	key         uint64
}

func (n *node) insert(key uint64) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

func (n *node) sum() uint64 {
	if n == nil {
		return 0
	}
	return n.left.sum()*3 + n.key + n.right.sum()*5
}

func work(task uint64) string {
	var root *node
	x := task*2654435761 + 1
	words := map[string]int{}
	for i := 0; i < 20000; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		root = root.insert(x)
		words[strconv.FormatUint(x%997, 36)]++
	}
	keys := make([]string, 0, len(words))
	for k, n := range words {
		keys = append(keys, fmt.Sprint(k, n))
	}
	sort.Strings(keys)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(fmt.Sprint(root.sum(), keys))))
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	var guard sync.Mutex
	ticks := 0
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			guard.Lock()
			ticks++
			guard.Unlock()
		}
	}()
	for round := 0; round < rounds; round++ {
		tasks, done := make(chan uint64), make(chan struct{})
		results := make([]string, 16)
		for w := 0; w < 4; w++ {
			go func() {
				for t := range tasks {
					results[t] = work(uint64(round)*16 + t)
				}
				done <- struct{}{}
			}()
		}
		for t := uint64(0); t < 16; t++ {
			tasks <- t
		}
		close(tasks)
		for w := 0; w < 4; w++ {
			<-done
		}
		fmt.Println(round, results[0][:16], fmt.Sprintf("%x", sha256.Sum256([]byte(fmt.Sprint(results))))[:16])
	}
	guard.Lock()
	fmt.Println("ticked", ticks > 10)
}
